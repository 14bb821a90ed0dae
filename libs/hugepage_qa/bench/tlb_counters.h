/* What the processor counts of a thread in user mode, where it counts at all; virtual machines mostly do not. */
#ifndef TLB_COUNTERS_H
#define TLB_COUNTERS_H

enum tlb { INSTRUCTION_TLB, DATA_TLB };

/* Have the processor count from now on: loads that miss the TLB, all of them, and instructions. */
void tlb_count(enum tlb tlb);

/* Keep what was counted since, and count no more. */
void tlb_keep(void);

/* Print " misses N accesses N instructions N" of what was kept, n/a for what the processor does not count. */
void tlb_print(void);

#endif
