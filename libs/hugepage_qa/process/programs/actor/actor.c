/*
 * The actor: makes system calls and touches memory on request, one request per packet on the socket that is
 * its standard input. A SIGBUS or SIGSEGV is an answer and not its end. It ends when the other side is gone.
 *
 * Request: a verb and its arguments, separated by spaces. An argument is a decimal number, or "x" and bytes in
 * hexadecimal (0 to 9, a to f), which are put into a buffer whose address is passed.
 *
 *   calls.c
 *     call NAME ARGUMENT...              a system call of its table
 *     late-store NAME ARGUMENT... OFFSET  store OFFSET bytes behind the address that is the first of five arguments,
 *                                        make the call with them, and store there again before anything else; the
 *                                        value is what came of that: enum came
 *     soft-dirty ADDRESS ROUNDS CLEAR_REFS PAGEMAP
 *                                        so many times store at the address, have what was written forgotten by a
 *                                        descriptor of clear_refs, store there again before anything else, and look
 *                                        into pagemap; and the same without the second store. Two values: how often the
 *                                        page was not soft-dirty with it, and how often it was without
 *     discard ADDRESS LENGTH STEP BYTES [ADVICE]
 *                                        give BYTES back at each multiple of STEP, by MADV_DONTNEED or ADVICE
 *     compute MILLISECONDS               use that much time of a CPU, and touch no memory but the stack
 *     malloc LENGTH | free ADDRESS       of the C library
 *     libc                               its version times 1000 if it is glibc, else 0
 *     wake WORD OTHER                    two threads sleep in FUTEX_WAIT, one on each; the value is how many FUTEX_WAKE
 *                                        of the second word woke, and of the first one times 256
 *   memory_access.c
 *     load ADDRESS | store ADDRESS VALUE  8 bytes
 *     fill ADDRESS LENGTH STEP VALUE     store VALUE + offset at each multiple of STEP; with a STEP of 64, a line,
 *                                        at the word of 8 bytes in each line that has the number of the line, modulo 8
 *     check ADDRESS LENGTH STEP VALUE    how many of these are not as fill left them
 *     nonzero ADDRESS LENGTH [STEP]      how many words of 8 bytes are not zero: all, or those of fill with STEP
 *     sum ADDRESS LENGTH                 the Adler-32 checksum (RFC 1950) of these bytes
 *     tag ADDRESS LENGTH TAG             give so many bytes a tag (arm64, MTE), which pointers to them need to have
 *     text                               the address of the code that was linked to it for tests, 0 without
 *     run ADDRESS COUNT STEP             call COUNT functions, STEP bytes apart, and count those that do not return
 *                                        their number
 *     broken                             the signal that told that memory is broken, and ended no access, since this was
 *                                        asked last, as that of an access; else 0
 *   processes.c
 *     fork                               the answer carries the socket of the child
 *     exec [ENVIRONMENT COUNT LENGTH]    the program begins anew, in the same process: with a variable, and COUNT
 *                                        arguments of LENGTH bytes; the value is how many of these are not as they were
 *   race.c
 *     race PROCESSES MILLISECONDS LENGTH FLAGS FD STEP
 *         For that time, again and again, new PROCESSES map LENGTH bytes at the same moment, each a multiple of STEP
 *         further into FD, store there at the same moment, and unmap them; then the file is emptied. Bit N: in a round
 *         N of them stored.
 *     attach PROCESSES MILLISECONDS LENGTH IDENTIFIER -1 STEP
 *         As race with a segment of LENGTH bytes: they attach it, fill all of it with the same, see fill, look for that,
 *         and detach it, each at the same moment; in every other round its pages are given back before they are filled.
 *         Then all attach it once more, and end. Bit N: in a round N of them found what was stored.
 *     first PROCESSES MILLISECONDS ADDRESS LENGTH FD VALUE
 *         For that time, again and again, two threads of each of so many new PROCESSES look for zeroes at ADDRESS, or
 *         store VALUE there if it is not 0, at the same moment, and end. Before that LENGTH bytes there, which are
 *         shared, are removed if it is not 0, and 2 is written to FD unless it is -1. The value is how many rounds
 *         there were, and what follows is what came of any of them: enum came.
 *   same_moment.c
 *     clash ACTIONS MILLISECONDS LENGTH FLAGS FD [ALIGNED]
 *         For that time, again and again, LENGTH bytes are mapped, a thread for each byte of ACTIONS, see act(), does
 *         that to them at the same moment, and looks at them when all have; then they are unmapped, and the file
 *         is emptied. The value is how many rounds there were, the buffer what came of each action in any of them: enum
 *         came. Where ALIGNED is not 0 the memory begins at a multiple of LENGTH, and all threads store, all over it.
 *   repeaters.c
 *     repeat NAME ARGUMENT...            a new thread makes this system call again and again, until stop; it copies
 *                                        buffers
 *     attempt NAME ARGUMENT...           the same, and being refused is enough
 *     shuttle NAME ARGUMENT...           the same, and the first argument and the fifth change places when it is done:
 *                                        mremap moves there and back
 *     use ADDRESS LENGTH STEP            a new thread stores 8 bytes at each multiple of STEP, of its own, again and
 *                                        again, and looks each time for those that it stored there before, until stop
 *     watch ADDRESS LENGTH STEP VALUE    a new thread looks for what fill has stored with a step of 8, at each multiple
 *                                        of STEP, again and again until stop; for zeroes with a VALUE of 0
 *     reread FD LENGTH STEP VALUE        as watch, by pread64()
 *     stop MILLISECONDS                  after that time, and when each of these threads has done what it does at least
 *                                        once, they end. The buffer is struct repeated of each, in their order
 *
 * Answer: "ok VALUE BUFFER..." with the buffers as the system call left them, "errno NUMBER",
 * "signal NUMBER CODE ADDRESS LSB", "malformed", or "lost" when one of those that race was.
 */
#include "actor.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct {
	const char *verb;
	void (*answer)(void);
} verbs[] = {
	{"call", answer_call},	   {"discard", answer_discard}, {"compute", answer_compute}, {"wake", answer_wake},
	{"malloc", answer_malloc}, {"free", answer_free},	{"libc", answer_libc},	     {"fork", answer_fork},
	{"exec", answer_exec},	   {"race", answer_race},	{"clash", answer_clash},     {"stop", answer_stop},
	{"late-store", answer_late_store}, {"broken", answer_broken}, {"soft-dirty", answer_soft_dirty},
	{"attach", answer_attach}, {"first", answer_first},
};

/* Whether the name of a system call follows ``verb``. */
static int makes_calls(const char *verb)
{
	static const char *const these[] = {"call", "late-store", "repeat", "attempt", "shuttle"};

	for (size_t index = 0; index < sizeof(these) / sizeof(*these); index++)
		if (!strcmp(verb, these[index]))
			return 1;
	return 0;
}

static void serve(char *request)
{
	char *rest, *verb = strtok_r(request, " ", &rest);

	call_name = verb && makes_calls(verb) ? strtok_r(NULL, " ", &rest) : "";
	if (!verb || !call_name || parse_arguments(&rest) < 0)
		return answer_malformed();
	for (size_t index = 0; index < sizeof(verbs) / sizeof(*verbs); index++)
		if (!strcmp(verb, verbs[index].verb))
			return verbs[index].answer();
	if (!answer_repeater(verb) && !answer_access(verb))
		answer_malformed();
}

/* whoever started the suite may be a user with limits: what they refuse is no answer of the kernel to a case */
static void raise_limits(void)
{
	static const int limits[] = {RLIMIT_AS, RLIMIT_CPU, RLIMIT_DATA, RLIMIT_FSIZE};
	static const struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};

	for (size_t at = 0; at < sizeof(limits) / sizeof(*limits); at++)
		setrlimit(limits[at], &none); /* not for those without rights */
}

int main(int count, char **words)
{
	static char request[PACKET + 1];
	ssize_t length;

	/* whoever started us may be gone already: then our parent is another */
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	if (count < 2 || getppid() != atoi(words[1]))
		return 1;
	raise_limits();
	signal(SIGCHLD, SIG_IGN); /* nobody waits for a forked actor */
	catch_faults();
	if (count > 2)
		answer_value(wrong_arguments(count - 3, words + 3, atol(words[2])));
	while ((length = recv(STDIN_FILENO, request, PACKET, 0)) > 0) {
		request[length] = 0;
		serve(request);
	}
	return 0;
}
