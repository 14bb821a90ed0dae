/* What the parts of the agent know of each other. */
#ifndef AGENT_H
#define AGENT_H

#include <stddef.h>
#include <sys/types.h>

enum {
	PACKET = 65536,	     /* actor.h; and no more is read or written at once */
	LARGEST = 64 << 20, /* of a request and of a file; smaps of 100,000 mappings are as large */
	FIELDS = 8,
};

/* ---- frames.c: requests come, and answers go ---- */

extern int channel;
extern char *fields[FIELDS]; /* each ends with a NUL, too */
extern size_t field_sizes[FIELDS];

/* The letter of the next request, 0 when the other side is gone or talks nonsense. */
char receive(void);
void begin_answer(char letter);
void put_field(const void *bytes, size_t size);
void put_number(long long number);
void end_answer(void);
/* As if the answer that was begun had not been. */
void drop_answer(void);
/* Nothing but this, or errno for what is negative. */
void answer(long result);
void send_answers(void);
/* The block in its new size; without memory the agent ends. */
void *grown(void *block, size_t size);

/* ---- machine_files.c: what is done to files by their names ---- */

extern char *file_content;

/* The bytes of a file and a NUL, in a block that the next call takes; -1 with errno, EFBIG and no part of it. */
ssize_t read_file(const char *path);
void answer_read(void);
void answer_names(void);
void answer_file_system(void);
long write_file(void);
long store_bytes(void);
long write_zeros(void);
long evict(void);
long load_module(const char *path);
/* ``result``, with its errno. */
long close_with(int descriptor, long result);

/* ---- actors.c: started, asked, waited for, killed ---- */

/* The OOM killer spares the agent, and no actor. */
void set_oom_score(const char *score);
void start_actor(void);
void answer_actor_request(void);
void kill_actor(void);
void end_waiting(void);

#endif
