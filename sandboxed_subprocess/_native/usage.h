/* What the whole tree uses, and the limits of it. Part of launcher.c; runs in init, which looks at /proc from time to time.
 *
 * Nothing else here sees a tree: the kernel's own limits are for each process, and a control group has to be given to us. What has
 * ended is counted too, since the kernel adds it to the parent that waits for it, and in the end to us: but for processes whose
 * parent ignores SIGCHLD; they count as they were when they were last seen. Sources: proc(5), kernel/exit.c (wait_task_zombie).
 *
 * Memory is what would need swap: pages that no file holds, private ones by their share (a page that ten processes have since a
 * fork is one page), the tables of their addresses, and files that are in memory only: tmpfs, memfd, System V. That is dear to know
 * exactly, so an upper bound is looked at first. Address space is not memory, and neither is a file that is mapped.
 */

enum { TICK_US = 10000 };                  /* of what /proc counts in: USER_HZ is 100 on every architecture that we have */

struct usage { uint64_t cpu_us, memory, written; uint32_t processes, threads; };
static struct usage used, peak;            /* at the last look; the highest of each since the start */

/* A look costs a moment of a processor: no more than one part in a hundred of it may go into looking, and a limit that has been
 * crossed is to be seen within half a second. Where one can be crossed before that, three parts, and a fifth of a second: on a host
 * with hundreds of processes, which are all looked at where there is no pid namespace, a hog was through before it was seen. */
enum { LOOK_OFTEN_MS = 5, LOOK_MS = 20, LOOK_RARELY_MS = 100, LOOK_AT_LEAST_MS = 500, LOOK_NEAR_MS = 200 };
enum { LOOK_SHARE = 100, LOOK_SHARE_NEAR = 33 };
static int64_t next_look;
static int quiet;                          /* looks since the tree has last done anything */
static size_t crowd;                       /* processes at the last look, by the quick count */
static int64_t not_before;                 /* milliseconds: until then no limit can be crossed, but for that of processes */
static int64_t hurry;                      /* milliseconds until the next look, where the crowd grows; 0: no hurry */
static uint64_t shared_at_first;           /* bytes of shared memory of the whole host, when the command began */
static unsigned look_number;

static int64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* "name:   123 kB" of a file of /proc, in bytes. */
static uint64_t kilobytes(const char *text, const char *name)
{
	const char *at = strstr(text, name);

	return at ? strtoull(at + strlen(name), NULL, 10) * 1024 : 0;
}

/* Where a process is to be read about: its first thread, but that may have ended, and then it shows nothing of what the others
 * have. Returns -1 if there is nobody left. */
static int directory_of(const struct process *p, char *path, size_t room)
{
	char buffer[4096] __attribute__((aligned(8)));
	long n;
	int dir, found = -1;

	snprintf(path, room, "/proc/%d", (int)p->pid);
	if (p->state != 'Z' || p->threads < 2)
		return 0;
	snprintf(path, room, "/proc/%d/task", (int)p->pid);
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return -1;
	while (found < 0 && (n = syscall(SYS_getdents64, dir, buffer, sizeof buffer)) > 0)
		for (long at = 0; at < n && found < 0;) {
			unsigned short length;
			pid_t thread = (pid_t)strtol(buffer + at + 19, NULL, 10);

			memcpy(&length, buffer + at + 16, sizeof length);
			at += length;
			if (thread > 0 && thread != p->pid) {
				snprintf(path, room, "/proc/%d/task/%d", (int)p->pid, (int)thread);
				found = 0;
			}
		}
	close(dir);
	return found;
}

static int read_of(const struct process *p, const char *name, char *text, size_t room)
{
	char path[128];

	if (directory_of(p, path, sizeof path) < 0)
		return -1;
	strcat(path, name);
	return read_text(path, text, room);
}

/* Whether it lives in its parent's memory: between vfork() and exec it shows all of that as its own. */
static int is_guest(const struct process *p)
{
	const struct process *parent = find_process(p->parent);
	long same;

	if (!parent || !parent->marked || parent->addresses != p->addresses || !p->addresses)
		return 0;
	same = syscall(SYS_kcmp, p->pid, parent->pid, 1 /* KCMP_VM */, 0, 0);
	/* Where that may not be asked: a parent that waits for its vfork() cannot be interrupted. */
	return same < 0 ? parent->state == 'D' : same == 0;
}

struct own_memory { uint64_t private, shared; };

/* What is a process's own, by a cheap count: pages of no file (one that several have since a fork counts for each), swapped ones, and
 * the tables of all its addresses; and its pages of files in memory. */
static struct own_memory memory_of(const struct process *p)
{
	struct own_memory m = {0, 0};
	char text[4096];

	if (read_of(p, "/status", text, sizeof text) < 0)
		return m;
	m.private = kilobytes(text, "\nRssAnon:") + kilobytes(text, "\nVmSwap:") + kilobytes(text, "\nVmPTE:");
	m.shared = kilobytes(text, "\nRssShmem:");
	return m;
}

/* The same of its private pages, but each by its share: dear, since the kernel looks at all of them. */
static uint64_t share_of(const struct process *p)
{
	char text[4096];

	if (read_of(p, "/smaps_rollup", text, sizeof text) < 0)
		return memory_of(p).private;      /* ended, or not to be looked into: then by the count that is too high */
	/* Before Linux 5.10 the pages of files are not told apart in a share; then all that is private counts in full. */
	return (strstr(text, "\nPss_Anon:") ? kilobytes(text, "\nPss_Anon:") : kilobytes(text, "\nAnonymous:")) +
		kilobytes(text, "\nSwapPss:");
}

static int is_ours(const struct process *p)
{
	return p->marked && p->pid != connector_pid;
}

static int is_crowded(void);

/* The private memory of all by shares, in so much time at most: what is left over then counts by the bound. The kernel waits for
 * whoever is forking, who waits for a processor, behind all the others: so not while the number of processes crosses its limit. */
static uint64_t shares(int64_t patience_us)
{
	const int64_t until = now_us() + patience_us;
	uint64_t sum = 0;

	for (size_t i = 0; i < process_count; i++)
		if (is_ours(processes + i) && !is_guest(processes + i))
			sum += now_us() > until || is_crowded() ? memory_of(processes + i).private : share_of(processes + i);
	return sum;
}

/* An empty file takes a kilobyte as well. */
static uint64_t statfs_used(const struct statfs *fs)
{
	if (fs->f_type != TMPFS_MAGIC_)
		return 0;
	return (uint64_t)(fs->f_blocks - fs->f_bfree) * (uint64_t)fs->f_bsize + (uint64_t)(fs->f_files - fs->f_ffree) * 1024;
}

/* What lies in the private /tmp and its kin. */
static uint64_t tmpfs_memory(void)
{
	struct record r;
	struct statfs fs;
	uint64_t sum = 0, seen[16];
	size_t seen_count = 0;

	if (tmpfs_fd >= 0)
		return fstatfs(tmpfs_fd, &fs) == 0 ? statfs_used(&fs) : 0;
	if (!(plan->flags & F_WRAPPED))
		return 0;
	/* bubblewrap has made several. */
	FOR_EACH_RECORD(r) {
		struct stat st;
		int is_new = 1;

		if (r.kind != K_CHECK || r.n.b != C_TMPFS || stat(r.s[0], &st) < 0 || statfs(r.s[0], &fs) < 0)
			continue;
		for (size_t i = 0; i < seen_count; i++)
			is_new &= seen[i] != st.st_dev;
		if (!is_new || seen_count == sizeof seen / sizeof *seen)
			continue;
		seen[seen_count++] = st.st_dev;
		sum += statfs_used(&fs);
	}
	return sum;
}

/* Files without a name in memory, each once, however many have it open. */
enum { MOST_MEMFDS = 4096 };
static struct { uint64_t inodes[MOST_MEMFDS], sum; size_t count, entries; int64_t until_us; } memfds;

/* Adds those of one table of descriptors; -1 where it cannot be read, or the time is up: there may be very many. */
static int add_memfds(const char *path)
{
	static char buffer[8192] __attribute__((aligned(8)));
	int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), result = 0;
	long n;

	if (dir < 0)
		return errno == ENOENT || errno == ESRCH ? 0 : -1;      /* ended, or not to be looked into */
	while (result == 0 && (n = syscall(SYS_getdents64, dir, buffer, sizeof buffer)) > 0)
		for (long at = 0; at < n;) {
			unsigned short length;
			const char *name = buffer + at + 19;
			char target[32];
			struct stat st;
			size_t k = 0;

			memcpy(&length, buffer + at + 16, sizeof length);
			at += length;
			if (++memfds.entries % 64 == 0 && now_us() > memfds.until_us) {
				result = -1;
				break;
			}
			if (readlinkat(dir, name, target, sizeof target) < 7 || strncmp(target, "/memfd:", 7) || fstatat(dir, name, &st, 0) < 0)
				continue;
			while (k < memfds.count && memfds.inodes[k] != st.st_ino)
				k++;
			if (k < memfds.count)
				continue;
			if (memfds.count < MOST_MEMFDS)
				memfds.inodes[memfds.count++] = st.st_ino;
			memfds.sum += (uint64_t)st.st_blocks * 512;
		}
	close(dir);
	return result;
}

/* UINT64_MAX where not everything could be looked at. */
static uint64_t memfd_memory(int64_t until_us)
{
	memset(&memfds, 0, sizeof memfds);
	memfds.until_us = until_us;
	for (size_t i = 0; i < process_count; i++) {
		static char buffer[8192] __attribute__((aligned(8)));
		char path[128];
		long n;
		int dir;

		if (!is_ours(processes + i))
			continue;
		if (processes[i].threads < 2) {
			snprintf(path, sizeof path, "/proc/%d/fd", (int)processes[i].pid);
			if (add_memfds(path) < 0)
				return UINT64_MAX;
			continue;
		}
		/* A thread may have a table of its own (unshare(2), CLONE_FILES). */
		snprintf(path, sizeof path, "/proc/%d/task", (int)processes[i].pid);
		dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (dir < 0)
			continue;
		while ((n = syscall(SYS_getdents64, dir, buffer, sizeof buffer)) > 0)
			for (long at = 0; at < n;) {
				unsigned short length;
				long thread = strtol(buffer + at + 19, NULL, 10);

				memcpy(&length, buffer + at + 16, sizeof length);
				at += length;
				if (thread <= 0)
					continue;
				snprintf(path, sizeof path, "/proc/%d/task/%ld/fd", (int)processes[i].pid, thread);
				if (add_memfds(path) < 0) {
					close(dir);
					return UINT64_MAX;
				}
			}
		close(dir);
	}
	return memfds.sum;
}

/* The namespace's own; without one there is none, by the filter. "key shmid perms size cpid lpid nattch uid gid cuid cgid atime
 * dtime ctime rss swap" */
static uint64_t sysv_memory(void)
{
	static char text[16384];
	size_t held = 0;
	uint64_t sum = 0;
	ssize_t n;
	int fd;

	if (plan->flags & F_NO_VIEW)
		return 0;
	fd = open("/proc/sysvipc/shm", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	while ((n = read(fd, text + held, sizeof text - 1 - held)) > 0) {
		char *line = text, *end;

		held += (size_t)n;
		text[held] = 0;
		for (; (end = strchr(line, '\n')); line = end + 1) {
			char *at = line;

			for (int i = 1; i <= 16; i++) {
				uint64_t field = strtoull(at, &at, 10);      /* the heading has no numbers */

				if (i >= 15)
					sum += field;
			}
		}
		held = strlen(line);
		if (held == sizeof text - 1)
			held = 0;
		memmove(text, line, held);
	}
	close(fd);
	return sum;
}

/* More than there can be where it cannot be read: then everybody is looked at. */
#define UNKNOWN_SHARED (1ull << 60)
static uint64_t host_shared(void)
{
	static char text[4096];

	return read_text("/proc/meminfo", text, sizeof text) < 0 ? UNKNOWN_SHARED : kilobytes(text, "\nShmem:");
}

/* By its share: what one process has mapped of memory without a name, and of memfds that nobody has open any more. */
static uint64_t nameless_of(const struct process *p, int64_t until_us)
{
	static char text[65536];
	char path[128];
	uint64_t sum = 0;
	size_t held = 0;
	int fd, counts = 0;
	ssize_t n;

	if (directory_of(p, path, sizeof path) < 0)
		return 0;
	strcat(path, "/smaps");
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == EACCES ? UINT64_MAX / 2 : 0;      /* not to be looked into: all that there may be is its */
	while (now_us() < until_us && (n = read(fd, text + held, sizeof text - 1 - held)) > 0) {
		char *line = text, *end;

		held += (size_t)n;
		text[held] = 0;
		for (; (end = strchr(line, '\n')); line = end + 1) {
			char *dash = strchr(line, '-'), *at = line;

			*end = 0;
			if (!strncmp(line, "Pss:", 4)) {
				sum += counts ? strtoull(line + 4, NULL, 10) * 1024 : 0;
			} else if (dash && dash < line + 17) {      /* "addresses rights offset device inode name" */
				uint64_t inode;
				size_t k = 0;

				for (int field = 1; field < 5 && at; field++)
					at = strchr(at + 1, ' ');
				inode = at ? strtoull(at, &at, 10) : 0;
				while (at && *at == ' ')
					at++;
				while (k < memfds.count && memfds.inodes[k] != inode)
					k++;
				counts = at && (!strcmp(at, "/dev/zero (deleted)") || (!strncmp(at, "/memfd:", 7) && k == memfds.count));
			}
		}
		held = strlen(line);
		if (held == sizeof text - 1)
			held = 0;      /* no line of this file is so long */
		memmove(text, line, held);
	}
	close(fd);
	return sum;
}

/* most: what it comes to where the time is not enough. */
static uint64_t nameless_memory(int64_t until_us, uint64_t most)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < process_count && sum < most; i++) {
		if (now_us() > until_us || is_crowded())
			return most;
		if (is_ours(processes + i) && !is_guest(processes + i))
			sum += nameless_of(processes + i, until_us);
	}
	return sum < most ? sum : most;
}

/* Memory of files that are in memory only, other than tmpfs. Who has which is dear to know; that the whole host has no more than
 * it had, is not. What has no name at all (shared mappings of nothing) is seen by who has its pages, as far as the host has grown.
 *
 * sum: what is known without that; tmpfs: of it; mapped: pages of any file in memory, each as often as it is mapped. */
static uint64_t other_objects(uint64_t sum, uint64_t tmpfs, uint64_t mapped)
{
	static unsigned unseen;
	uint64_t grown = host_shared(), found = 0;
	int matters;

	if (grown < shared_at_first)
		shared_at_first = grown;      /* somebody else has given some back */
	if (grown == UNKNOWN_SHARED)
		shared_at_first = 0;
	grown = grown > shared_at_first + tmpfs ? grown - shared_at_first - tmpfs : 0;
	matters = limits[L_MEMORY] && sum + grown > limits[L_MEMORY];
	if (matters || grown >= 8u << 20) {
		found = memfd_memory(now_us() + (matters ? 200000 : 5000));
		/* Whoever cannot be looked into is not given the benefit of the doubt; but a process can be so for a moment. */
		unseen = found == UINT64_MAX ? unseen + 1 : 0;
		if (unseen)
			found = matters && unseen > 1 ? grown : 0;
		else
			found += sysv_memory();
	}
	grown = grown > found ? grown - found : 0;
	if (grown > mapped)
		grown = mapped;
	/* Strangers may have made the host's grow, and several of us have one and the same file mapped. */
	if (limits[L_MEMORY] && sum + found + grown > limits[L_MEMORY])
		grown = nameless_memory(now_us() + 200000, grown);
	return found + grown;
}

static uint64_t write_bytes(const char *text)
{
	const char *at = strstr(text, "\nwrite_bytes:");

	return at ? strtoull(at + 13, NULL, 10) : 0;
}

static uint64_t written_by(pid_t pid)
{
	char path[64], text[512];

	snprintf(path, sizeof path, "/proc/%d/io", (int)pid);
	return read_text(path, text, sizeof text) < 0 ? 0 : write_bytes(text);
}

static uint64_t written_by_ended(void)
{
	char text[512];
	ssize_t n = io_fd < 0 ? -1 : pread(io_fd, text, sizeof text - 1, 0);

	if (n <= 0)
		return 0;
	text[n] = 0;
	return write_bytes(text);
}

/* How many there are, at least: without reading anything about them, so that a crowd is seen in time. */
static size_t count_quickly(size_t enough)
{
	static char buffer[32768] __attribute__((aligned(8)));
	size_t count = 0;
	long n;
	int dir;

	if (plan->flags & F_NO_VIEW)
		return used.processes;      /* it is everybody's /proc */
	dir = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return 0;
	while (count <= enough && (n = syscall(SYS_getdents64, dir, buffer, sizeof buffer)) > 0)
		for (long at = 0; at < n;) {
			unsigned short length;

			memcpy(&length, buffer + at + 16, sizeof length);
			count += buffer[at + 19] >= '1' && buffer[at + 19] <= '9';
			at += length;
		}
	close(dir);
	return count ? count - 1 - (connector_pid != 0) : 0;
}

static int is_crowded(void)
{
	if (!limits[L_PROCESSES])
		return 0;
	used.processes = (uint32_t)count_quickly((size_t)limits[L_PROCESSES] + 2);
	return used.processes > limits[L_PROCESSES];
}

static void raise_peaks(void)
{
	if (used.processes > peak.processes)
		peak.processes = used.processes;
	if (used.threads > peak.threads)
		peak.threads = used.threads;
	if (used.memory > peak.memory)
		peak.memory = used.memory;
}

/* What has ended is in our own figures already. */
static void ended_usage(uint64_t *cpu_us, uint64_t *written)
{
	struct rusage u;

	*cpu_us = 0;
	if (getrusage(RUSAGE_CHILDREN, &u) == 0)
		*cpu_us = (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 + (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
	*written = written_by_ended();
}

/* Whom nobody waits for (his parent ignores SIGCHLD) takes his figures with him: the kernel adds them to nobody's. Then what was
 * last seen of him is carried over. Where the parent is still there, its own figures say whether it has got those of a child;
 * where it is not, any process may have become the parent.
 *
 * A parent is looked at before its children, as its number is lower: so what a child has used cannot be seen twice in one look, as
 * its own and as what its parent has waited for. Where numbers have begun anew and that is not so, nothing is carried over. But it
 * may not be seen at all, if the parent waits for it between the two: then it comes at the next look, and what was carried over for
 * it is given back (`owed`). */
static struct seen { pid_t pid, parent; uint64_t start, ticks, waited, written; struct amount owed; } seen[MAX_PROCESSES];
static size_t seen_count;
static struct amount seen_ended, lost, owed_by_orphans;

static int is_gone(const struct seen *s)
{
	struct process now;

	return s->parent < s->pid && (read_process(s->pid, &now) < 0 ? kill(s->pid, 0) < 0 && errno == ESRCH : now.start != s->start);
}

/* What was carried over at the last look and has come after all. */
static void give_back(uint64_t *lost_, uint64_t owed, uint64_t *came)
{
	const uint64_t back = owed < *came ? owed : *came;

	*lost_ -= back;
	*came -= back;
}

/* What of `gone` has not come; what has come beyond that stays in `came`. */
static uint64_t missing(uint64_t gone, uint64_t *came)
{
	const uint64_t found = gone < *came ? gone : *came;

	*came -= found;
	return gone - found;
}

/* `ended`: our own figures, before the look. */
static void carry_over(struct amount ended)
{
	struct amount rest = {ended.ticks - seen_ended.ticks, ended.written - seen_ended.written}, orphans = {0, 0};
	size_t gone = 0, at = 0;

	for (size_t i = 0; i < process_count; i++) {
		struct process *p = processes + i;

		if (!is_ours(p))
			continue;
		p->came = (struct amount){p->waited, p->written};
		while (at < seen_count && seen[at].pid < p->pid)
			seen[gone++] = seen[at++];
		if (at == seen_count || seen[at].pid != p->pid)
			continue;
		if (seen[at].start == p->start) {
			struct process now;

			p->known = 1;
			/* Not to be looked into any more: what was seen is still true. But it may have ended since it was found, and then
			 * its parent has it already. */
			if (p->written < seen[at].written && read_process(p->pid, &now) == 0 && now.start == p->start && now.state != 'Z')
				p->written = seen[at].written;
			if (p->written < seen[at].written)
				seen[at].written = p->written;
			p->owed = seen[at].owed;
			p->came = (struct amount){p->waited - seen[at].waited, p->written - seen[at].written};
			at++;
		}
	}
	while (at < seen_count)
		seen[gone++] = seen[at++];
	for (size_t i = 0; i < gone; i++) {
		struct process *parent = find_process(seen[i].parent);
		const int is_known = parent && is_ours(parent) && parent->known;
		struct amount *to = is_known ? &parent->gone : &orphans, *owed = is_known ? &parent->owed : &owed_by_orphans;

		if (is_gone(seen + i)) {
			to->ticks += seen[i].ticks;
			to->written += seen[i].written;
			owed->ticks += seen[i].owed.ticks;
			owed->written += seen[i].owed.written;
		}
	}
	seen_count = 0;
	for (size_t i = 0; i < process_count; i++) {
		struct process *p = processes + i;

		if (!is_ours(p))
			continue;
		give_back(&lost.ticks, p->owed.ticks, &p->came.ticks);
		give_back(&lost.written, p->owed.written, &p->came.written);
		p->owed = (struct amount){missing(p->gone.ticks, &p->came.ticks), missing(p->gone.written, &p->came.written)};
		lost.ticks += p->owed.ticks;
		lost.written += p->owed.written;
		rest.ticks += p->came.ticks;
		rest.written += p->came.written;
		seen[seen_count++] = (struct seen){p->pid, p->parent, p->start, p->ticks, p->waited, p->written, p->owed};
	}
	give_back(&lost.ticks, owed_by_orphans.ticks, &rest.ticks);
	give_back(&lost.written, owed_by_orphans.written, &rest.written);
	owed_by_orphans = (struct amount){missing(orphans.ticks, &rest.ticks), missing(orphans.written, &rest.written)};
	lost.ticks += owed_by_orphans.ticks;
	lost.written += owed_by_orphans.written;
	seen_ended = ended;
}

/* How long it takes at least to use up what is left of a limit, at so much in a millisecond. */
static int64_t time_left(enum limit which, uint64_t in_use, uint64_t in_a_ms)
{
	if (!limits[which])
		return INT64_MAX;
	return limits[which] > in_use ? (int64_t)((limits[which] - in_use) / in_a_ms) : 0;
}

/* As fast as any machine of today can be: memory is cleared at 8 GB/s, a disk's cache filled at 4, fifty threads made in a
 * millisecond, and a processor used as fast as time goes by. */
static int64_t soonest(int64_t least)
{
	const int64_t left[] = {
		time_left(L_MEMORY, used.memory, 8000000), time_left(L_WRITTEN, used.written, 4000000), time_left(L_THREADS, used.threads, 50),
		time_left(L_CPU, used.cpu_us, 1000 * (uint64_t)sysconf(_SC_NPROCESSORS_ONLN)),
	};

	for (size_t i = 0; i < sizeof left / sizeof *left; i++)
		if (left[i] < least)
			least = left[i];
	return least;
}

/* Looks at the tree. Returns the limit that it has crossed, or L_NONE. */
static enum limit look(void)
{
	const struct usage before = used;
	static int too_much_cpu, too_much_written;
	uint64_t private = 0, mapped = 0, tmpfs, objects, by_group, user, system;
	struct amount ended;
	const int with_written = limits[L_WRITTEN] || plan->event_ms;
	int is_counted;

	if (is_crowded()) {
		raise_peaks();
		return L_PROCESSES;
	}
	hurry = used.processes > crowd + 4 ? 2 : 0;
	crowd = used.processes;
	if (!hurry && now_ms() < not_before)
		return L_NONE;
	is_counted = group_memory(&by_group) == 0;
	ended_usage(&used.cpu_us, &used.written);
	ended = (struct amount){used.cpu_us / TICK_US, used.written};
	used.processes = used.threads = 0;
	find_tree();
	for (size_t i = 0; with_written && i < process_count; i++)
		if (is_ours(processes + i))
			processes[i].written = written_by(processes[i].pid);
	carry_over(ended);
	used.cpu_us += lost.ticks * TICK_US;
	used.written += lost.written;
	for (size_t i = 0; i < process_count; i++) {
		const struct process *p = processes + i;

		if (!is_ours(p))
			continue;
		used.processes++;
		used.threads += p->threads;
		used.cpu_us += p->ticks * TICK_US;
		if (!is_counted && !is_guest(p)) {
			const struct own_memory m = memory_of(p);

			private += m.private;
			mapped += m.shared;
		}
		used.written += p->written;
	}
	look_number++;
	if (group_time(&user, &system) == 0)
		used.cpu_us = user + system;
	tmpfs = is_counted ? 0 : tmpfs_memory();
	objects = is_counted ? 0 : other_objects(private + tmpfs, tmpfs, mapped);
	used.memory = is_counted ? by_group : private + tmpfs + objects;
	/* Ten children of one big process are not ten big processes. */
	if (is_counted)
		;
	else if (used.processes > 1 && limits[L_MEMORY] && used.memory > limits[L_MEMORY])
		used.memory = shares(100000) + tmpfs + objects;
	else if (used.processes > 1 && used.processes == before.processes && used.memory > peak.memory + (64u << 20))
		used.memory = shares(20000) + tmpfs + objects;
	if (is_crowded()) {
		raise_peaks();
		return L_PROCESSES;
	}
	raise_peaks();
	not_before = now_ms() + soonest(LOOK_RARELY_MS);
	/* Two clocks that are not read in one moment are some microseconds apart. */
	quiet = used.cpu_us < before.cpu_us + 1000 && used.processes == before.processes ? quiet + 1 : 0;
	if (limits[L_MEMORY] && used.memory > limits[L_MEMORY])
		return L_MEMORY;
	if (limits[L_PROCESSES] && used.processes > limits[L_PROCESSES])
		return L_PROCESSES;
	if (limits[L_THREADS] && used.threads > limits[L_THREADS])
		return L_THREADS;
	/* Seen twice, as below; a single process cannot be counted double. */
	too_much_written = limits[L_WRITTEN] && used.written > limits[L_WRITTEN] ? too_much_written + 1 : 0;
	if (too_much_written > 1 || (too_much_written && used.processes == 1))
		return L_WRITTEN;
	if (too_much_written)
		not_before = 0;
	/* A moment later than the kernel's own limit for one process, whose signal a program may want to see. */
	too_much_cpu = limits[L_CPU] && used.cpu_us > limits[L_CPU] + 200000 ? too_much_cpu + 1 : 0;
	/* Seen twice: a child that ends between the look at it and the look at its parent counts double in one. */
	return too_much_cpu > 1 ? L_CPU : L_NONE;
}

/* What the kernel says of the group: that it has ended somebody for want of memory, or refused a thread. */
static enum limit crossed_in_group(void)
{
	const char *text = limits[L_MEMORY] ? group_says(G_EVENTS) : NULL;

	if (text && says_out_of_memory(text)) {
		used.memory = used.memory > group_memory_max ? used.memory : group_memory_max;
		raise_peaks();
		return L_MEMORY;
	}
	text = limits[L_THREADS] ? group_says(G_PIDS) : NULL;
	if (!text || !number_in(text, "max"))
		return L_NONE;
	/* Before Linux 6.11 that may have been a limit of somebody above. What is in it and not the command's is few. */
	text = group_says(G_THREADS);
	if (!text || group_pids_max <= limits[L_THREADS] || strtoull(text, NULL, 10) + GROUP_OTHERS < group_pids_max)
		return L_NONE;
	used.threads = used.threads > limits[L_THREADS] ? used.threads : (uint32_t)limits[L_THREADS] + 1;
	raise_peaks();
	return L_THREADS;
}

/* Whether the command, which has just ended, leaves more behind than may be. Behind our limit there is one of the kernel's
 * (RLIMIT_NPROC), and a crowd that meets it may lose its first process before we have had a moment to look. */
static int leaves_a_crowd(void)
{
	if (!limits[L_PROCESSES])
		return 0;
	if (plan->flags & F_NO_VIEW) {
		find_tree();
		used.processes = 0;
		for (size_t i = 0; i < process_count; i++)
			used.processes += is_ours(processes + i) != 0;
	}
	if (!is_crowded())
		return 0;
	raise_peaks();
	return 1;
}

/* The last look has found nobody, not even the command, which is there until it is reaped: no descriptor is left, or no memory. */
static int is_blind(void)
{
	int limited = 0;

	for (int i = L_MEMORY; i < L_COUNT; i++)
		limited |= limits[i] != 0;
	return limited && !used.processes && command_pid;
}

static uint64_t value_of(enum limit which)
{
	switch (which) {
	case L_MEMORY:
		return used.memory;
	case L_PROCESSES:
		return used.processes;
	case L_THREADS:
		return used.threads;
	case L_WRITTEN:
		return used.written;
	case L_CPU:
		return used.cpu_us;
	default:
		return 0;
	}
}

/* When to look again, after a look that began at that moment. A tree that sleeps crosses nothing, and a thousand of them must not
 * keep the host busy. */
static void plan_next_look(int64_t began_us)
{
	int64_t cost = now_us() - began_us, wait = LOOK_RARELY_MS, most = 20 * LOOK_RARELY_MS, least, needed = cost * LOOK_SHARE / 1000;

	for (int i = L_MEMORY; i < L_COUNT; i++)
		if (limits[i]) {
			wait = soonest(LOOK_RARELY_MS);
			if (limits[L_PROCESSES] && wait > LOOK_MS)
				wait = LOOK_MS;
			/* Few hundred threads are made in no time. */
			least = limits[L_THREADS] && limits[L_THREADS] < 1000 ? LOOK_OFTEN_MS : LOOK_MS;
			if (wait < least)
				wait = least;
			most = LOOK_RARELY_MS;
		}
	if (limits[L_PROCESSES] && look_number < 4)
		wait = 2 << look_number;      /* a bomb is lit at once, or a program has just begun: either way it grows from one */
	wait <<= quiet < 5 ? quiet : 5;
	if (wait > most)
		wait = most;
	if (plan->event_ms && (int64_t)plan->event_ms < wait)
		wait = (int64_t)plan->event_ms > LOOK_MS ? (int64_t)plan->event_ms : LOOK_MS;
	if (hurry)
		wait = hurry;
	else if (needed > wait) {
		const int is_near = soonest(needed) < needed;

		most = is_near ? LOOK_NEAR_MS : LOOK_AT_LEAST_MS;
		if (cost / 100 > most)
			most = cost / 100;      /* and never more than a tenth */
		if (is_near && cost * LOOK_SHARE_NEAR / 1000 > wait)
			needed = cost * LOOK_SHARE_NEAR / 1000;
		else if (is_near)
			needed = wait;
		wait = needed > most ? most : needed;
	}
	next_look = now_ms() + wait;
}
