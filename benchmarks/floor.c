/* What the processes of the `landlock` tier cost by themselves: a launcher that does nothing but be them. Measured by spawn.py as a
 * plain subprocess, so without plan, identity, environment, checks, limits and report.
 *
 *     floor FILTER PROGRAM [ARGUMENT...]      FILTER: a file with the seccomp filter that the tier uses
 *
 * caller -> monitor -> init -> command, as in launcher.c, with the session made by a process between init and the command.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char stacks[2][65536] __attribute__((aligned(64)));
static struct { unsigned short length; void *filter; } program;
static char filter[65536];
static char **command;
static int ruleset;
static pid_t started;

static int command_main(void *unused)
{
	(void)unused;
	if (syscall(SYS_close_range, 3u, ~0u, 4u /* CLOEXEC */) < 0 || syscall(446 /* landlock_restrict_self */, ruleset, 0) < 0 ||
	    syscall(SYS_seccomp, 1, 0, &program) < 0)
		_exit(126);
	execvp(command[0], command);
	_exit(127);
}

static int session_main(void *unused)
{
	(void)unused;
	started = setsid() < 0 ? -1 :
		clone(command_main, stacks[1] + sizeof stacks[1], CLONE_VM | CLONE_FILES | CLONE_PARENT | SIGCHLD, NULL);
	_exit(0);
}

static void init_main(void)
{
	int status;
	pid_t between;

	if (setsid() < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
		_exit(125);
	between = clone(session_main, stacks[0] + sizeof stacks[0], CLONE_VM | CLONE_VFORK | CLONE_FILES | SIGCHLD, NULL);
	if (between < 0 || waitpid(between, NULL, 0) < 0 || started < 0 || waitpid(started, &status, 0) < 0)
		_exit(125);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 125);
}

int main(int argc, char **argv)
{
	const uint64_t rules[3] = {1 << 1 /* WRITE_FILE */, 0, 0};
	const struct { uint64_t access; int32_t fd; } __attribute__((packed)) rule = {1 << 1, open("/dev/null", O_PATH | O_CLOEXEC)};
	int fd = argc > 2 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1, status;
	ssize_t n = fd < 0 ? -1 : read(fd, filter, sizeof filter);
	pid_t init;

	if (n <= 0)
		return 64;
	program.length = (unsigned short)(n / 8);
	program.filter = filter;
	command = argv + 2;
	ruleset = (int)syscall(444 /* landlock_create_ruleset */, rules, sizeof rules[0], 0);
	if (ruleset < 0 || syscall(445 /* landlock_add_rule */, ruleset, 1, &rule, 0) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return 125;
	init = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (init == 0)
		init_main();
	return init < 0 || waitpid(init, &status, 0) < 0 || !WIFEXITED(status) ? 125 : WEXITSTATUS(status);
}
