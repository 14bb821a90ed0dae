/* Memory on pages of one kind, and what the kernel tells of it: what programs that measure memory share. */
#ifndef MEASURED_MEMORY_H
#define MEASURED_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* of THP the block is the page; of others what room the memory of each process is a multiple of */
extern size_t base_page, huge_page, block;
/* MAP_PRIVATE or MAP_SHARED */
extern int sharing;

/* Set what is above; KIND is base, thp, or the bytes of a static huge page. */
void choose_pages(const char *kind, const char *block_bytes);

/* Say what failed and end, with all processes of the group where there are others that would wait. */
void fail(const char *what);
extern int is_one_of_many;

uint64_t now(void);

/* The sum of the lines of a file of /proc that begin with one of the names, which NULL ends, in kB. */
long kilobytes(const char *path, const char *const *names);

/* of this process, in kB */
long huge(void);
long swapped(void);
long page_tables(void);

/* Memory that begins where a transparent page may. */
char *map(size_t bytes);
/* Memory that shares no table of the first two levels with other mappings; each call gives the same. */
char *map_apart(size_t bytes);
void unmap(char *start, size_t bytes);
void touch(char *start, size_t bytes, size_t step);

#endif
