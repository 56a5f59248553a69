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
static mode_t place_mode;

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

/* By the kernel, all at once; before Linux 5.14 one by one, again and again. */
static void kill_group(void)
{
	static char text[65536];
	char *at = text, *end;

	if (write_in_group("cgroup.kill", "1") == 0 || read_in_group("cgroup.procs", text, sizeof text) < 0)
		return;
	for (long pid; (pid = strtol(at, &end, 10)) > 0 && end != at; at = end)
		kill((pid_t)pid, SIGKILL);
}

/* Ends what may be left in it, and removes it. Does nothing in other processes than the monitor. */
static void remove_group(void)
{
	char text[256];

	if (place_fd < 0 || group_fd < 0)
		return;
	/* Where there are no mounts of its own, the command may have changed the modes of what is its user's. */
	(void)fchmod(group_fd, 0755);
	(void)fchmod(place_fd, place_mode);
	for (int i = 0; i < 400; i++) {
		struct pollfd events = {.fd = -1, .events = POLLPRI};

		if (unlinkat(place_fd, group_name, AT_REMOVEDIR) == 0 || errno == ENOENT)
			break;
		/* Without a pid namespace this is what ends whoever got away from init and from us. */
		kill_group();
		/* A process is in it until the kernel has taken it apart. */
		events.fd = openat(group_fd, "cgroup.events", O_RDONLY | O_CLOEXEC);
		if (events.fd >= 0) {
			ssize_t n = read(events.fd, text, sizeof text - 1);

			text[n > 0 ? n : 0] = 0;
			if (number_in(text, "populated"))
				(void)poll(&events, 1, 5);
			close(events.fd);
		}
	}
	close(group_fd);
	close(place_fd);
	place_fd = group_fd = -1;
}

/* Whether we are in the group that the caller is in: somebody may have moved us (in preexec_fn), and he had a reason. */
static int is_where_the_caller_is(void)
{
	static char text[8192];
	const size_t length = strlen(group_own);

	if (read_text("/proc/thread-self/cgroup", text, sizeof text) < 0)
		return 0;
	for (char *at = text; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
		if (!strncmp(at, "0::", 3))
			return !strncmp(at + 3, group_own, length) && at[3 + length] == '\n';
	return 0;
}

/* What it holds is above the limits by what is in it that is not the command's: bubblewrap may have made large files. */
static int hold_group(void)
{
	char text[32];
	uint64_t most = group_memory_max;

	if (plan->flags & F_WRAPPED && most && read_in_group("memory.current", text, sizeof text) == 0)
		most += strtoull(text, NULL, 10);
	if (most && (limit_group("memory.max", most) < 0 ||
			/* Memory on a disk is memory; and a kernel may be built without any. */
			(limit_group("memory.swap.max", 0) < 0 && errno != ENOENT)))
		return -1;
	return group_pids_max ? limit_group("pids.max", group_pids_max) : 0;
}

static void make_group(void)
{
	struct timespec now;
	struct stat st;

	if (!group_place || !is_where_the_caller_is())
		return;
	place_fd = open(group_place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (place_fd < 0)
		return;
	/* Containers with process numbers of their own may have one place together. */
	clock_gettime(CLOCK_REALTIME, &now);
	snprintf(group_name, sizeof group_name, "sandboxed-subprocess-%d-%llx", (int)getpid(),
		(unsigned long long)now.tv_sec * 1000000000 + (unsigned long long)now.tv_nsec);
	if (fstat(place_fd, &st) == 0 && mkdirat(place_fd, group_name, 0755) == 0) {
		place_mode = st.st_mode & 07777;
		group_fd = openat(place_fd, group_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		/* bubblewrap is held once it is done. */
		if (group_fd >= 0 && (plan->flags & F_WRAPPED || hold_group() == 0))
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
static uint64_t group_user_before, group_system_before, group_memory_before;      /* what bubblewrap and we have used */

static void open_group(void)
{
	static const char *const names[G_COUNT] = {"memory.events", "memory.stat", "memory.swap.current", "pids.events", "pids.peak",
		"cpu.stat"};

	if (group_fd < 0)
		return;
	for (int i = 0; i < G_COUNT; i++)
		group_files[i] = openat(group_fd, names[i], O_RDONLY | O_CLOEXEC);
	if (group_files[G_THREADS] < 0)
		group_files[G_THREADS] = openat(group_fd, "pids.current", O_RDONLY | O_CLOEXEC);      /* before Linux 6.1 or so */
	close(group_fd);
	group_fd = -1;
}

/* What cannot be read any more is closed: its controller has been taken away, and to poll it would be to spin. */
static const char *group_says(enum group_file which)
{
	static char text[8192];
	ssize_t n = group_files[which] < 0 ? -1 : pread(group_files[which], text, sizeof text - 1, 0);

	if (n <= 0) {
		if (group_files[which] >= 0)
			close(group_files[which]);
		group_files[which] = -1;
		return NULL;
	}
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

/* Memory that would need swap, as it is counted without a group, and what the kernel keeps for sockets; but what was there before
 * the command. -1: it does not say. */
static int group_memory(uint64_t *bytes)
{
	const char *text = group_says(G_STAT);
	uint64_t sum;

	if (!text)
		return -1;
	sum = number_in(text, "anon") + number_in(text, "shmem") + number_in(text, "pagetables") + number_in(text, "sock");
	text = group_says(G_SWAP);
	sum += text ? strtoull(text, NULL, 10) : 0;
	*bytes = sum > group_memory_before ? sum - group_memory_before : 0;
	return 0;
}

static void begin_group(void)
{
	open_group();
	if (group_files[G_CPU] < 0)
		return;
	(void)group_memory(&group_memory_before);
	if (plan->flags & F_WRAPPED)
		(void)group_time(&group_user_before, &group_system_before);
}
