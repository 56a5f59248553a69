/* A control group (of the second kind) for one run, where the caller was given a place for some. Part of launcher.c.
 *
 * The monitor makes it and takes it away; everything else is born in it (clone3 with CLONE_INTO_CGROUP: to move a process costs
 * milliseconds, since the kernel waits for all processors). The kernel then holds memory, whatever it is for, and the number of
 * threads, counts the time of all processors, that of processes that nobody waits for too, and ends everything with one word.
 * init does what it does without one, and asks the group where that knows better: so a group that cannot be made costs nothing but
 * that, and the report says which it was.
 *
 * Sources: docs.kernel.org/admin-guide/cgroup-v2.html; man 7 cgroups; man 2 clone3.
 */

enum { NR_clone3 = 435 };
enum { GROUP_OTHERS = 8 };                 /* how many of us may be in it (_records.py adds them to the limit) */
#define CLONE_INTO_CGROUP_ 0x200000000ull

struct clone_args_ {
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

static int place_fd = -1;                  /* monitor only: the directory that the group is made in */
static int group_fd = -1;                  /* all but the command: the group's own directory */
static char group_name[64];

static int write_in_group(const char *name, const char *text)
{
	int fd = openat(group_fd, name, O_WRONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -1;
	n = write(fd, text, strlen(text));
	close(fd);
	return n == (ssize_t)strlen(text) ? 0 : -1;
}

static int read_in_group(const char *name, char *text, size_t room)
{
	int fd = openat(group_fd, name, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -1;
	n = read(fd, text, room - 1);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	return n > 0 ? 0 : -1;
}

/* The number behind a name at the beginning of a line, or 0. */
static uint64_t number_in(const char *text, const char *name)
{
	const size_t length = strlen(name);

	for (const char *at = text; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
		if (!strncmp(at, name, length) && at[length] == ' ')
			return strtoull(at + length, NULL, 10);
	return 0;
}

static int limit_group(const char *name, uint64_t value)
{
	char text[32];

	snprintf(text, sizeof text, "%llu", (unsigned long long)value);
	return write_in_group(name, text);
}

/* Ends what may be left in it, and removes it. Does nothing in other processes than the monitor. */
static void remove_group(void)
{
	char text[256];

	if (place_fd < 0 || group_fd < 0)
		return;
	/* Without a pid namespace it is what ends whoever got away from init and from us. Before Linux 5.14 there is no such file. */
	for (int i = 0; i < 200; i++) {
		struct pollfd events = {.fd = -1, .events = POLLPRI};

		if (unlinkat(place_fd, group_name, AT_REMOVEDIR) == 0 || errno != EBUSY)
			break;
		(void)write_in_group("cgroup.kill", "1");
		/* A process is in it until the kernel has taken it apart. */
		events.fd = openat(group_fd, "cgroup.events", O_RDONLY | O_CLOEXEC);
		if (events.fd >= 0 && read(events.fd, text, sizeof text - 1) > 0)
			(void)poll(&events, 1, 5);
		if (events.fd >= 0)
			close(events.fd);
	}
	close(group_fd);
	close(place_fd);
	place_fd = group_fd = -1;
}

static void make_group(void)
{
	struct timespec now;

	if (!group_place)
		return;
	place_fd = open(group_place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (place_fd < 0)
		return;
	/* Containers with process numbers of their own may have one place together. */
	clock_gettime(CLOCK_REALTIME, &now);
	snprintf(group_name, sizeof group_name, "sandboxed-subprocess-%d-%llx", (int)getpid(),
		(unsigned long long)now.tv_sec * 1000000000 + (unsigned long long)now.tv_nsec);
	if (mkdirat(place_fd, group_name, 0755) == 0) {
		group_fd = openat(place_fd, group_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (group_fd >= 0 && (!group_memory_max || (limit_group("memory.max", group_memory_max) == 0 &&
				/* Memory on a disk is memory; and a kernel may be built without any. */
				(limit_group("memory.swap.max", 0) == 0 || errno == ENOENT))) &&
		    (!group_pids_max || limit_group("pids.max", group_pids_max) == 0))
			return;
		if (group_fd < 0)
			unlinkat(place_fd, group_name, AT_REMOVEDIR);
	}
	if (group_fd >= 0)
		remove_group();
	if (place_fd >= 0)
		close(place_fd);
	place_fd = -1;
}

/* As fork(), in new namespaces by `flags`, and in the group; with `alone` too where there is none. */
static pid_t clone_into_group(unsigned long flags, unsigned long alone)
{
	struct clone_args_ how = {.flags = flags | CLONE_INTO_CGROUP_, .exit_signal = SIGCHLD, .cgroup = (uint64_t)group_fd};
	pid_t pid;

	if (group_fd >= 0) {
		pid = (pid_t)syscall(NR_clone3, &how, sizeof how);
		if (pid >= 0)
			return pid;
		remove_group();
	}
	return (pid_t)syscall(SYS_clone, flags | alone | SIGCHLD, 0, 0, 0, 0);
}

/* Whether the kernel has ended somebody for want of memory in the group: "oom_kill" alone may have been for want of the host's. */
static int says_out_of_memory(const char *events)
{
	return number_in(events, "oom") > 0 && number_in(events, "oom_kill") > 0;
}

static int group_ran_out(void)
{
	char text[512];

	return group_fd >= 0 && group_memory_max && read_in_group("memory.events", text, sizeof text) == 0 && says_out_of_memory(text);
}

/* ---- init: what the group says. Opened once; each is read anew from its beginning. */

enum group_file { G_EVENTS, G_STAT, G_SWAP, G_PIDS, G_THREADS, G_CPU, G_COUNT };
static int group_files[G_COUNT] = {-1, -1, -1, -1, -1, -1};
static uint64_t group_user_before, group_system_before;      /* what bubblewrap has used */

static void open_group(void)
{
	static const char *const names[G_COUNT] = {"memory.events", "memory.stat", "memory.swap.current", "pids.events", "pids.current",
		"cpu.stat"};

	if (group_fd < 0)
		return;
	for (int i = 0; i < G_COUNT; i++)
		group_files[i] = openat(group_fd, names[i], O_RDONLY | O_CLOEXEC);
	close(group_fd);
	group_fd = -1;
}

static const char *group_says(enum group_file which)
{
	static char text[8192];
	ssize_t n = group_files[which] < 0 ? -1 : pread(group_files[which], text, sizeof text - 1, 0);

	if (n <= 0)
		return NULL;
	text[n] = 0;
	return text;
}

/* What all have used of processors together, but for init itself. -1: there is no group. */
static int group_time(uint64_t *user_us, uint64_t *system_us)
{
	const char *text = group_says(G_CPU);
	struct rusage own;
	uint64_t user, system, before;

	if (!text || getrusage(RUSAGE_SELF, &own) < 0)
		return -1;
	user = number_in(text, "user_usec");
	system = number_in(text, "system_usec");
	before = group_user_before + (uint64_t)own.ru_utime.tv_sec * 1000000 + (uint64_t)own.ru_utime.tv_usec;
	*user_us = user > before ? user - before : 0;
	before = group_system_before + (uint64_t)own.ru_stime.tv_sec * 1000000 + (uint64_t)own.ru_stime.tv_usec;
	*system_us = system > before ? system - before : 0;
	return 0;
}

/* Memory that would need swap, as it is counted without a group, and what the kernel keeps for sockets. -1: it does not say. */
static int group_memory(uint64_t *bytes)
{
	const char *text = group_says(G_STAT);

	if (!text)
		return -1;
	*bytes = number_in(text, "anon") + number_in(text, "shmem") + number_in(text, "pagetables") + number_in(text, "sock");
	text = group_says(G_SWAP);
	*bytes += text ? strtoull(text, NULL, 10) : 0;
	return 0;
}
