// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which of the faults that are seeded into this kernel acts: one, or none.
 *
 * It is chosen by the word seeded_fault=NAME, wherever on the command line it stands, and later by
 * /sys/module/seeded_fault/parameters/name.
 */
#include <linux/cache.h>
#include <linux/delay.h>
#include <linux/errno.h>
#include <linux/init.h>
#include <linux/kernel.h>
#include <linux/moduleparam.h>
#include <linux/seeded_fault.h>
#include <linux/string.h>

static const char *const names[] = { SEEDED_FAULT_NAMES };

enum seeded_fault seeded_fault __read_mostly;

/* Choose what the word at the start of text names. */
static int choose(const char *text)
{
	size_t length = strcspn(text, " \n");
	int index;

	for (index = 0; index < ARRAY_SIZE(names); index++) {
		if (strlen(names[index]) == length && !strncmp(names[index], text, length)) {
			WRITE_ONCE(seeded_fault, index);
			return 0;
		}
	}
	return -EINVAL;
}

/* Called before any other word of the command line is looked at. */
void __init seeded_fault_at_boot(const char *command_line)
{
	const char *word = strstr(command_line, "seeded_fault=");

	if (word && choose(word + strlen("seeded_fault=")))
		pr_err("seeded_fault: this kernel has no such fault, it is healthy\n");
}

/* The word is known: init is not told of it. */
static int __init known_word(char *value)
{
	return 0;
}
early_param("seeded_fault", known_word);

void seeded_fault_wait(unsigned int milliseconds)
{
	msleep(milliseconds);
}

static int name_set(const char *text, const struct kernel_param *parameter)
{
	return choose(text);
}

static int name_get(char *buffer, const struct kernel_param *parameter)
{
	return sprintf(buffer, "%s\n", names[READ_ONCE(seeded_fault)]);
}

static const struct kernel_param_ops name_operations = { .set = name_set, .get = name_get };
module_param_cb(name, &name_operations, NULL, 0600);
