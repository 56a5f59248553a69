/* launcher.c: from a plan to a sandboxed command, in three processes.
 *
 *   caller ── Popen ──> monitor ── clone(7 namespaces) ──> init ── vfork ──> command
 *
 * monitor  The process that Popen knows. Stays in the caller's process group and session, forwards signals, waits
 *          for init and ends exactly as the command ended. Holds none of the command's file descriptors.
 * init     Process 1 of the sandbox: builds the view of the file system, starts the command, reaps orphans, and
 *          watches the calling process. When it ends, for whatever reason, the kernel ends everything inside.
 * command  What the user asked for. Drops every privilege, proves it, and execs.
 *
 * Two weaker arrangements exist for hosts that forbid making namespaces (see F_WRAPPED and F_NO_VIEW below):
 *
 *   caller ── Popen ──> monitor ── bwrap ──> init ── vfork ──> command     bubblewrap makes the view, init only checks it
 *   caller ── Popen ──> monitor ── fork ──> init ── vfork ──> command      no view at all; init is a subreaper
 *
 * The launch socket's number is in argv[0] ("sandboxed-subprocess N"), and its first message brings the plan; the rest of
 * argv and the whole environment are the command's own. Everything in the plan is parsed and checked before the first
 * irreversible step; after that nothing is allocated. The launcher is linked statically, so that LD_PRELOAD and its
 * kin, which belong to the command, have no power over it, and it carries its own kernel constants, so that the
 * headers of an old distribution never cost a layer of protection.
 *
 * Sources: man 7 namespaces, user_namespaces, pid_namespaces, capabilities; man 2 mount_setattr, move_mount,
 * open_tree, seccomp, landlock_add_rule; docs.kernel.org/userspace-api/landlock.html.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <net/if.h>
#include <netinet/in.h>
#include <arpa/inet.h>

/* ---- kernel interface, by number (include/uapi/linux) -------------------------------------------------------- */

enum {
	NR_pidfd_open = 434, NR_pidfd_getfd = 438, NR_close_range = 436, NR_openat2 = 437,
	NR_open_tree = 428, NR_move_mount = 429, NR_fsopen = 430, NR_fsconfig = 431, NR_fsmount = 432,
	NR_mount_setattr = 442, NR_pidfd_send_signal = 424,
	NR_landlock_create_ruleset = 444, NR_landlock_add_rule = 445, NR_landlock_restrict_self = 446,
};

#define OPEN_TREE_CLONE_ 1u
#define AT_RECURSIVE_ 0x8000u
#define MOVE_MOUNT_F_EMPTY_PATH_ 0x04u
#define MOVE_MOUNT_T_EMPTY_PATH_ 0x40u
#define MOUNT_ATTR_RDONLY_ 0x01u
#define MOUNT_ATTR_NOSUID_ 0x02u
#define MOUNT_ATTR_NODEV_ 0x04u
#define MOUNT_ATTR_NOEXEC_ 0x08u
#define MS_PRIVATE_ (1u << 18)
#define FSCONFIG_SET_STRING_ 1u
#define FSCONFIG_CMD_CREATE_ 6u
#define CLOSE_RANGE_CLOEXEC_ 4u
#define RESOLVE_NO_MAGICLINKS_ 0x02u
#define RESOLVE_NO_SYMLINKS_ 0x04u
#define SECCOMP_SET_MODE_FILTER_ 1u
#define SECCOMP_FILTER_FLAG_NEW_LISTENER_ 8u
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV_ 32u
#define SO_NETNS_COOKIE_ 71
#define SCHED_OTHER_ 0u
#define SCHED_FIFO_ 1u
#define SIOCOUTQ_ 0x5411u
#define SIOCGSKNS_ 0x894c
#define NS_GET_USERNS_ 0xb701
#define PIDFD_THREAD_ O_EXCL
#define CAP_SETPCAP_ 8
#define CAP_SYS_ADMIN_ 21
#define CAP_SYS_PTRACE_ 19
#define TMPFS_MAGIC_ 0x01021994
#define PROC_MAGIC_ 0x9fa0
#define DEVPTS_MAGIC_ 0x1cd1
#define PIPEFS_MAGIC_ 0x50495045
#define SOCKFS_MAGIC_ 0x534f434b
#define STATX_MNT_ID_ 0x1000u
#define STATX_ATTR_MOUNT_ROOT_ 0x2000u
#define ST_RDONLY_ 1
#define ST_NOSUID_ 2
#define ST_NODEV_ 4
#define SECCOMP_IOCTL_NOTIF_RECV_ 0xc0502100ul
#define SECCOMP_IOCTL_NOTIF_SEND_ 0xc0182101ul
#define SECCOMP_IOCTL_NOTIF_ID_VALID_ 0x40082102ul
#define LANDLOCK_RULE_PATH_BENEATH_ 1u
#define LL_EXECUTE (1ull << 0)
#define LL_WRITE_FILE (1ull << 1)
#define LL_READ_FILE (1ull << 2)
#define LL_TRUNCATE (1ull << 14)
#define LL_IOCTL_DEV (1ull << 15)
#define PR_SET_NO_NEW_PRIVS_ 38
#define PR_GET_NO_NEW_PRIVS_ 39
#define PR_CAP_AMBIENT_ 47
#define CAP_SETGID_ 6
#define CAP_SETUID_ 7
/* NOROOT, NO_SETUID_FIXUP, KEEP_CAPS off, NO_CAP_AMBIENT_RAISE, each with its lock bit (linux/securebits.h) */
#define SECUREBITS_ 0xefu
#define CAPABILITY_VERSION_3 0x20080522u
#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000
#endif

struct statx_ {
	uint32_t mask, blksize; uint64_t attributes; uint32_t nlink, uid, gid; uint16_t mode, pad; uint64_t ino, size, blocks, attributes_mask;
	uint64_t times[8]; uint32_t devices[4]; uint64_t mnt_id, rest[13];
};
struct mount_attr_ { uint64_t set, clr, propagation, userns_fd; };
struct open_how_ { uint64_t flags, mode, resolve; };
struct landlock_attr { uint64_t fs, net, scoped; };
struct landlock_path { uint64_t access; int32_t fd; } __attribute__((packed));
struct cap_header { uint32_t version; int pid; };
struct cap_data { uint32_t effective, permitted, inheritable; };
struct notification { uint64_t id; uint32_t pid, flags; int32_t nr; uint32_t arch; uint64_t ip, args[6]; };
struct answer { uint64_t id; int64_t value; int32_t error; uint32_t flags; };
struct netlink_header { uint32_t length; uint16_t type, flags; uint32_t sequence, port; };
struct unix_request { uint8_t family, protocol; uint16_t pad; uint32_t states, inode, show, cookie[2]; };
struct bpf_program { unsigned short length; const void *filter; };

/* ---- the plan ------------------------------------------------------------------------------------------------ */

/* Written by _backends/_records.py; both sides name the same version. Native byte order and sizes. */
struct header {
	char magic[8];               /* "sbxplan" and the version */
	uint32_t size;               /* bytes, this header included */
	uint32_t caller;             /* pid of the process that called Popen */
	uint32_t flags;              /* F_* */
	uint32_t uid, gid;           /* for F_UID and F_GID */
	uint32_t grace_ms;           /* how long what the command left behind may go on */
	uint32_t sources;            /* number of SOURCE records */
	int32_t kept;                /* what an earlier run left for us: an untouched network namespace, a ruleset (F_RULESET); or -1 */
	uint64_t event_ms;           /* how often the caller wants to be told how the tree is doing; 0: not at all */
	uint64_t ll_fs, ll_net, ll_scoped;   /* Landlock: rights handled; all zero: no ruleset */
	char tmpfs_size[24], tmpfs_inodes[24];
};

/* F_WRAPPED: bubblewrap makes the namespaces and the mounts, and this program, started again by it, is process 1 in them.
 * F_NO_VIEW: there are none; Landlock and the filter are all, and init ends the tree as its subreaper.
 * F_RULESET: the caller would have the ruleset for its next run, if nothing of this run is in it.
 * F_OBSERVE: the filter hands calls that name a file to the connector, which tells of what will be refused. */
enum {
	F_NETNS = 1, F_UID = 2, F_GID = 4, F_GROUPS = 8, F_SETSID = 16, F_SETPGID = 32, F_LISTENER = 64, F_WRAPPED = 128, F_NO_VIEW = 256,
	F_ROOT_FILES = 512, F_RULESET = 1024, F_OBSERVE = 2048
};

enum kind {
	K_ARGV0 = 1, K_EXEC, K_KEEP, K_GROUP, K_RLIMIT, K_FILTER,
	K_SOURCE, K_BASE, K_MKDIR, K_FILE, K_LINK, K_TBIND, K_ATTACH, K_PROTECT, K_PROC, K_DEVPTS, K_RULE, K_MASK, K_SEAL, K_ALIAS, K_SOCKET,
	K_WRAPPER, K_DATA, K_CHECK, K_TIDY, K_OPTION, K_PLACE, K_LIMIT, K_OBSERVE, K_CGROUP,
	K_COUNT
};

/* What a record holds: a fixed part, then so many NUL-terminated strings; FILE and FILTER end in raw bytes. */
struct numbers { uint32_t a, b; uint64_t c, d; };
static const struct { unsigned char strings, raw; } shape[K_COUNT] = {
	[K_ARGV0] = {1, 0}, [K_EXEC] = {1, 0}, [K_KEEP] = {0, 0}, [K_GROUP] = {0, 0}, [K_RLIMIT] = {0, 0},
	[K_FILTER] = {0, 1}, [K_SOURCE] = {1, 0}, [K_BASE] = {1, 0}, [K_MKDIR] = {1, 0}, [K_FILE] = {1, 1},
	[K_LINK] = {2, 0}, [K_TBIND] = {2, 0}, [K_ATTACH] = {1, 0}, [K_PROTECT] = {1, 0}, [K_PROC] = {0, 0},
	[K_DEVPTS] = {1, 0}, [K_RULE] = {1, 0}, [K_MASK] = {3, 0}, [K_SEAL] = {1, 0}, [K_ALIAS] = {2, 0}, [K_SOCKET] = {1, 0},
	[K_WRAPPER] = {1, 1}, [K_DATA] = {0, 1}, [K_CHECK] = {1, 0}, [K_TIDY] = {1, 0}, [K_OPTION] = {1, 1}, [K_PLACE] = {1, 0},
	[K_LIMIT] = {0, 0}, [K_OBSERVE] = {0, 1}, [K_CGROUP] = {2, 0},
};
struct record {
	enum kind kind;
	struct numbers n;
	const char *s[3];
	const char *raw;
	uint32_t raw_length;
};

/* flags in numbers.a of SOURCE, TBIND, ATTACH, PROTECT, PROC and RULE. O_OURS: on the way there is nothing but what root or
 * we have made, so that no link needs to be looked for. */
enum { O_READONLY = 1, O_OPTIONAL = 2, O_DEVICES = 8, O_PINNED = 16, O_FLAT = 32, O_OURS = 64 };

/* numbers.b of CHECK: what has to be at that place. */
enum { C_ANY, C_PINNED, C_MASK, C_TMPFS, C_PROC, C_DEVPTS, C_NODE, C_SHOWN };

enum { MAX_KEEP = 1024, MAX_SOURCES = 65536 };

static const struct header *plan;
static const char *plan_end;
static int launch_socket, plan_fd = -1;
static const char **candidates;            /* exec is tried on each in turn; ends with NULL */
static uint32_t keep[MAX_KEEP];            /* sorted: what the command inherits besides 0-2 */
static size_t keep_count, group_count;
static uint32_t *group_list;
static int *source_fd;
enum limit { L_NONE, L_WALL, L_MEMORY, L_PROCESSES, L_THREADS, L_WRITTEN, L_CPU, L_COUNT };
static uint64_t limits[L_COUNT];           /* of the tree: milliseconds, bytes, numbers, bytes, microseconds; 0: none */
static const char *group_place, *group_own;            /* where a control group may be made, or NULL; which the caller is in */
static uint64_t group_memory_max, group_pids_max;      /* what the kernel is to hold it to, a little above the limits; 0: nothing */
static char **command_argv;
static char *arguments, *arguments_end;    /* where the strings of argv lie */
extern char **environ;

/* ---- state shared by the three processes (each has its own copy, but for the command, which shares init's) ------ */

static int caller_fd = -1;                 /* pidfd of the calling process */
static int pair[2] = {-1, -1};             /* [0] monitor, [1] init: forwarded signals, go-ahead, wait status; its EOF: the monitor died */
static int tmpfs_fd = -1;
static int sigchld_ignored;
static int maps_by_monitor;
static int io_fd = -1;                     /* init: /proc/self/io */
static int joined;                         /* the user and network namespaces are those of an earlier run */
static int namespace_fd = -1;              /* init: a network namespace made here, to be handed to the caller */
static sigset_t original_mask, everything;
static mode_t original_umask;
static char cwd[PATH_MAX];
static char uid_map[4096], gid_map[4096];

struct failure { int error; int is_exec; int reached_exec; const char *step; const char *path; };
static volatile struct failure failure;    /* written by the command in the memory it shares with init */

/* ---- messages on the launch socket (SEQPACKET: one send, one message) -------------------------------------------- */

enum { M_RUNNING = 1, M_FAILED = 2, M_EXEC_FAILED = 3, M_ENDED = 4, M_PROGRESS = 5, M_DENIED = 6, M_OBSERVED = 7 };
struct message { uint32_t type; int32_t error; char step[32]; char path[PATH_MAX]; };
struct ended {
	uint32_t type; int32_t status;
	uint64_t user_us, system_us, max_rss_kb, memory, written, limit_value;
	uint32_t processes, threads, limit, left_behind, flags, unused;
	char names[1024];
};
enum { E_UNTOUCHED = 1, E_UNSEEN = 2, E_UNTOLD = 4, E_GROUP = 8 };
struct denied { uint32_t type; int32_t number; };
struct progress { uint32_t type, processes, threads, unused; uint64_t cpu_us, memory, written, wall_ms; };

static void report_failure(uint32_t type, const char *step, int error, const char *path)
{
	static struct message m;

	memset(&m, 0, sizeof m);
	m.type = type;
	m.error = error;
	strncpy(m.step, step, sizeof m.step - 1);
	if (path)
		strncpy(m.path, path, sizeof m.path - 1);
	/* Nobody listens when the caller is gone; then there is nobody to tell either. */
	(void)send(launch_socket, &m, offsetof(struct message, path) + strlen(m.path), MSG_NOSIGNAL);
}

static const char *step_name = "start", *step_path;

static void remove_group(void);

static void __attribute__((noreturn)) give_up(void)
{
	report_failure(M_FAILED, step_name, errno, step_path);
	remove_group();
	_exit(125);
}

/* Before the plan is known to be sound there is no socket to speak on: stderr, and a status that no one relies on. */
static void __attribute__((noreturn)) bad_plan(const char *why)
{
	dprintf(2, "sandboxed_subprocess launcher: %s\n", why);
	_exit(125);
}

/* ---- timing: compiled in by benchmarks/spawn.py only ---------------------------------------------------------------- */

#ifdef TIMING
static struct { const char *name; int64_t at; } marks[512];
static size_t mark_count;

static void mark(const char *name)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	if (mark_count < sizeof marks / sizeof *marks) {
		marks[mark_count].name = name;
		marks[mark_count++].at = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
	}
}

static void tell_marks(void)
{
	for (size_t i = 1; i < mark_count; i++)
		dprintf(2, "%s %lld\n", marks[i].name, (long long)(marks[i].at - marks[i - 1].at));
}
#else
#define mark(name) ((void)0)
#endif

/* ---- parsing: all of it before any action ------------------------------------------------------------------------ */

static const char *next_record(const char *at, struct record *r)
{
	uint32_t head[2];
	const char *payload, *end;

	if (plan_end - at < (ptrdiff_t)sizeof head)
		bad_plan("plan: truncated record");
	memcpy(head, at, sizeof head);
	payload = at + sizeof head;
	if (head[0] == 0 || head[0] >= K_COUNT || head[1] < sizeof r->n || head[1] % 8 || head[1] > (size_t)(plan_end - payload))
		bad_plan("plan: malformed record");
	end = payload + head[1];
	memset(r, 0, sizeof *r);
	r->kind = head[0];
	memcpy(&r->n, payload, sizeof r->n);
	payload += sizeof r->n;
	for (unsigned i = 0; i < shape[r->kind].strings; i++) {
		const char *nul = memchr(payload, 0, (size_t)(end - payload));
		if (!nul)
			bad_plan("plan: unterminated string");
		r->s[i] = payload;
		payload = nul + 1;
	}
	if (shape[r->kind].raw) {
		if (r->n.c > (uint64_t)(end - payload))
			bad_plan("plan: truncated bytes");
		r->raw = payload;
		r->raw_length = (uint32_t)r->n.c;
	}
	return end;
}

static void add_observed(const struct record *r);
static int has_observed(void);

#define FOR_EACH_RECORD(r) \
	for (const char *at_ = (const char *)(plan + 1); at_ < plan_end && (at_ = next_record(at_, &(r)), 1);)

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return x < y ? -1 : x > y;
}

/* Most plans are small; asking the kernel for more memory costs three calls. */
static void *table(size_t count, size_t each)
{
	static char small[16384] __attribute__((aligned(16)));
	static size_t used;
	size_t size = (count * each + 15) & ~(size_t)15;
	void *found;

	if (size <= sizeof small - used) {
		found = small + used;
		used += size;
	} else {
		found = calloc(count, each);
	}
	if (!found)
		bad_plan("out of memory");
	return found;
}

/* The first message on the launch socket, which was there before we were. */
static int receive_plan(void)
{
	char text[8];
	struct iovec io = {text, sizeof text};
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	struct cmsghdr *c;
	int fd;

	if (recvmsg(launch_socket, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) < 0)
		bad_plan("no plan on the launch socket");
	c = CMSG_FIRSTHDR(&m);
	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof fd))
		bad_plan("no plan in the first message");
	memcpy(&fd, CMSG_DATA(c), sizeof fd);
	return fd;
}

/* The command's arguments, at another place than where /proc shows those of this program. */
static void copy_arguments(int argc, char **argv)
{
	char *copy;

	arguments = argv[0];
	arguments_end = argv[argc - 1] + strlen(argv[argc - 1]) + 1;
	command_argv = table((size_t)argc + 1, sizeof *command_argv);
	copy = table(1, (size_t)(arguments_end - arguments));
	memcpy(copy, arguments, (size_t)(arguments_end - arguments));
	for (int i = 0; i < argc; i++)
		command_argv[i] = copy + (argv[i] - arguments);
}

static void parse(int fd)
{
	struct stat st;
	struct record r;
	size_t groups = 0, execs = 0, kept = 0, wrappers = 0;

	if (fstat(fd, &st) || st.st_size < (off_t)sizeof *plan || st.st_size > INT_MAX)
		bad_plan("plan: not a plan");
	plan = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
	if (plan == MAP_FAILED)
		bad_plan("plan: cannot be mapped");
	if (memcmp(plan->magic, "sbxplan7", 8) || plan->size != (uint64_t)st.st_size)
		bad_plan("plan: written for another version of the launcher; reinstall sandboxed_subprocess");
	if (plan->flags & F_ROOT_FILES && plan->flags & (F_WRAPPED | F_NO_VIEW))
		bad_plan("plan: root's power over files needs a user namespace of our own");
	if (plan->flags & F_RULESET && !(plan->flags & F_NO_VIEW))
		bad_plan("plan: only a ruleset for the host's own mounts can be used again");
	if (plan->flags & F_WRAPPED)
		plan_fd = fd;
	else
		close(fd);
	plan_end = (const char *)plan + plan->size;
	if (plan->sources > MAX_SOURCES || !memchr(plan->tmpfs_size, 0, sizeof plan->tmpfs_size) ||
	    !memchr(plan->tmpfs_inodes, 0, sizeof plan->tmpfs_inodes))
		bad_plan("plan: malformed header");
	uint32_t sources = 0;
	FOR_EACH_RECORD(r) switch (r.kind) {
	case K_EXEC:
		execs++;
		break;
	case K_KEEP:
		kept++;
		break;
	case K_GROUP:
		groups++;
		break;
	case K_LIMIT:
		if (r.n.a == L_NONE || r.n.a >= L_COUNT || !r.n.c)
			bad_plan("plan: not a limit");
		limits[r.n.a] = r.n.c;
		break;
	case K_CGROUP:
		group_place = r.s[0];
		group_own = r.s[1];
		group_memory_max = r.n.c;
		group_pids_max = r.n.d;
		break;
	case K_SOURCE:
		sources++;
		break;
	case K_WRAPPER:
		wrappers++;
		break;
	case K_ATTACH:
		if (r.n.b >= plan->sources)
			bad_plan("plan: no such source");
		break;
	case K_OBSERVE:
		add_observed(&r);
		break;
	case K_FILTER:
		if (r.raw_length % 8 || r.raw_length / 8 > 4096)
			bad_plan("plan: malformed filter");
		break;
	default:
		break;
	}
	if (plan->flags & F_OBSERVE ? !(plan->flags & F_LISTENER) : has_observed())
		bad_plan("plan: nobody to observe what it names");
	if (!execs || sources != plan->sources || kept > MAX_KEEP || wrappers != !!(plan->flags & F_WRAPPED))
		bad_plan("plan: incomplete, or more than it says");
	candidates = table(execs + 1, sizeof *candidates);
	source_fd = table(sources + 1, sizeof *source_fd);
	group_list = table(groups + 1, sizeof *group_list);
	execs = 0;
	FOR_EACH_RECORD(r) {
		if (r.kind == K_ARGV0)
			command_argv[0] = (char *)(uintptr_t)r.s[0];
		else if (r.kind == K_EXEC)
			candidates[execs++] = r.s[0];
		else if (r.kind == K_KEEP)
			keep[keep_count++] = r.n.a;
		else if (r.kind == K_GROUP)
			group_list[group_count++] = r.n.a;
	}
	qsort(keep, keep_count, sizeof *keep, by_number);
}

/* ---- small helpers: each returns -1 with errno set, like the system calls they wrap -------------------------------- */

static int open_tree(int dir, const char *path, unsigned flags)
{
	return (int)syscall(NR_open_tree, dir, path, flags | O_CLOEXEC);
}

static int set_attr(int dir, const char *path, unsigned flags, uint64_t set, uint64_t propagation)
{
	struct mount_attr_ a = {.set = set, .propagation = propagation};
	return (int)syscall(NR_mount_setattr, dir, path, flags, &a, sizeof a);
}

static int make_writable(int mount_fd)
{
	struct mount_attr_ a = {.clr = MOUNT_ATTR_RDONLY_};
	return (int)syscall(NR_mount_setattr, mount_fd, "", AT_EMPTY_PATH, &a, sizeof a);
}

/* As openat2 below does it, where a filter around us hides that call (ours does, in a sandbox within a sandbox). */
static int open_by_steps(const char *path)
{
	char name[NAME_MAX + 1];
	int at = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC), saved;

	while (at >= 0) {
		size_t length;
		int next;

		path += strspn(path, "/");
		length = strcspn(path, "/");
		if (!length)
			return at;
		if (length > NAME_MAX) {
			close(at);
			errno = ENAMETOOLONG;
			return -1;
		}
		memcpy(name, path, length);
		name[length] = 0;
		path += length;
		/* O_DIRECTORY on the way: with O_NOFOLLOW and O_PATH alone a link itself would be opened. */
		next = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC | (path[strspn(path, "/")] ? O_DIRECTORY : 0));
		saved = errno;
		close(at);
		errno = saved;
		at = next;
	}
	return -1;
}

/* Opens where a mount is to go. No symbolic link is followed anywhere in the path: Python resolved it, so a link
 * here was planted since, and following it would move the protection elsewhere. */
static int open_target(const char *path)
{
	struct open_how_ how = {.flags = O_PATH | O_CLOEXEC | O_NOFOLLOW, .resolve = RESOLVE_NO_MAGICLINKS_ | RESOLVE_NO_SYMLINKS_};
	int fd = (int)syscall(NR_openat2, AT_FDCWD, path, &how, sizeof how);

	return fd < 0 && errno == ENOSYS ? open_by_steps(path) : fd;
}

/* As above, but the last component may itself be a link: the link is what is opened. openat2 with NO_SYMLINKS and
 * O_NOFOLLOW|O_PATH does return the link (man 2 openat2), so the two cases need no code of their own. */
static int attach(int mount_fd, const char *target)
{
	int to = open_target(target), result;

	if (to < 0)
		return -1;
	result = (int)syscall(NR_move_mount, mount_fd, "", to, "", MOVE_MOUNT_F_EMPTY_PATH_ | MOVE_MOUNT_T_EMPTY_PATH_);
	close(to);
	return result;
}

static int attach_ours(int mount_fd, const char *target)
{
	return (int)syscall(NR_move_mount, mount_fd, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH_);
}

static int absent(void)
{
	return errno == ENOENT || errno == ENOTDIR;
}

/* Somebody else's directory that cannot be searched hides what is in it from the command as well, which has no more
 * rights than init; another user's socket in such a place must not stop every launch. */
static int out_of_reach(void)
{
	return errno == EACCES;
}

static int write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -1;
	n = write(fd, text, strlen(text));
	close(fd);
	return n == (ssize_t)strlen(text) ? 0 : -1;
}

/* The beginning of a file of /proc, as a string. */
static int read_text(const char *path, char *text, size_t room)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -1;
	n = read(fd, text, room - 1);
	close(fd);
	if (n <= 0)
		return -1;
	text[n] = 0;
	return 0;
}

static int new_filesystem(const char *type, const char *const *options, unsigned attributes)
{
	int result = -1, context = (int)syscall(NR_fsopen, type, 1u);

	if (context < 0)
		return -1;
	for (; *options; options += 2)
		if (syscall(NR_fsconfig, context, FSCONFIG_SET_STRING_, options[0], options[1], 0) < 0)
			goto out;
	if (syscall(NR_fsconfig, context, FSCONFIG_CMD_CREATE_, NULL, NULL, 0) == 0)
		result = (int)syscall(NR_fsmount, context, 1u, attributes);
out:
	close(context);
	return result;
}

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

#include "group.h"

/* ---- init: building the sandbox ------------------------------------------------------------------------------------ */

static void __attribute__((noreturn)) leave(int status);
static int switch_user(void);
static int has_capability(int number);

/* Born in a group, that is the top of all that the sandbox sees of groups; by the clone it would be the caller's. */
static int own_groups(void)
{
	return group_fd < 0 ? 0 : unshare(CLONE_NEWCGROUP);
}

static int begin_session(void)
{
	struct pollfd lifeline = {.fd = pair[1], .events = POLLIN};

	/* A session of its own: kill(0) and setpriority(PRIO_PGRP) inside must not reach the caller's group, and the
	 * caller's terminal must not be ours (man 2 setsid). bubblewrap may have made one already. */
	if (getsid(0) != getpid() && setsid() < 0)
		return -1;
	prctl(PR_SET_NAME, "sandbox-init");
	/* Without a pid namespace whoever is left would outlive a killed init: there it ends by itself, having ended them. */
	if (prctl(PR_SET_PDEATHSIG, plan->flags & F_NO_VIEW ? 0 : SIGKILL) < 0)
		return -1;
	/* The monitor may have died before the line above took effect; getppid() is 0 in a new pid namespace either
	 * way, so ask the socket whose other end only the monitor has. */
	if (poll(&lifeline, 1, 0) < 0)
		return -1;
	if (lifeline.revents & POLLHUP)
		leave(0);
	return 0;
}

static int own_identity(void)
{
	char go;

	if (plan->flags & (F_WRAPPED | F_NO_VIEW) || joined) {
		/* There are none to write, or they were written when the namespace was made. */
	} else if (maps_by_monitor) {
		ssize_t n;
		do
			n = recv(pair[1], &go, 1, 0);
		while (n < 0 && errno == EINTR);
		if (n != 1)
			_exit(125);      /* the monitor failed and has said so, or died */
	} else {
		/* The files are root's where the real and the effective user differed at the exec (man 2 prctl). */
		if (prctl(PR_SET_DUMPABLE, 1) < 0)
			return -1;
		/* One id, mapped to itself; setgroups must be given up first (man 7 user_namespaces). */
		step_path = "/proc/self/uid_map";
		if (write_file(step_path, uid_map) < 0)
			return -1;
		step_path = "/proc/self/setgroups";
		if (write_file(step_path, "deny") < 0)
			return -1;
		step_path = "/proc/self/gid_map";
		if (write_file(step_path, gid_map) < 0)
			return -1;
	}
	/* What everybody below us has written is added up there. Where the kernel does not count there is no such file. */
	step_path = NULL;
	if (prctl(PR_SET_DUMPABLE, 1) < 0)
		return -1;
	io_fd = open("/proc/self/io", O_RDONLY | O_CLOEXEC);
	step_path = "/proc/self/io";
	if (io_fd < 0 && limits[L_WRITTEN])
		return -1;      /* a limit that nobody could see being crossed */
	step_path = NULL;
	/* Not before the maps: these files belong to root while a process is not dumpable. From here on nothing
	 * inside can open /proc/1/mem, environ or fd, although it has the same uid. */
	return prctl(PR_SET_DUMPABLE, 0);
}

/* Loopback up, and a second address on it: with 127.0.0.1 alone, getaddrinfo("localhost", AI_ADDRCONFIG) finds
 * nothing, because it does not count loopback addresses (RFC 3493, section 6.1). 198.18.0.0/15 is for benchmarks. */
static int loopback(void)
{
	struct ifreq r;
	struct sockaddr_in *address = (struct sockaddr_in *)&r.ifr_addr;
	int s;

	if (!(plan->flags & F_NETNS) || joined)
		return 0;
	s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (s < 0)
		return -1;
	memset(&r, 0, sizeof r);
	strcpy(r.ifr_name, "lo");
	r.ifr_flags = IFF_UP | IFF_RUNNING;
	if (ioctl(s, SIOCSIFFLAGS, &r) < 0)
		goto fail;
	memset(&r, 0, sizeof r);
	strcpy(r.ifr_name, "lo:1");
	address->sin_family = AF_INET;
	address->sin_addr.s_addr = htonl(0xc6120001);
	/* Its netmask becomes that of the class; on lo that only makes more addresses local. Setting another one takes
	 * the address down and up again. */
	if (ioctl(s, SIOCSIFADDR, &r) < 0)
		goto fail;
	/* Without it (-1) the next run makes one of its own. */
	namespace_fd = ioctl(s, SIOCGSKNS_);
	return close(s);
fail:
	close(s);
	return -1;
}

/* What will stay writable, or must be shown again under something hidden, is cloned before everything turns
 * read-only. fstat on the clone, not on the path, is what proves that it is the approved directory. */
static int open_sources(void)
{
	struct record r;
	uint32_t i = 0;

	FOR_EACH_RECORD(r) {
		struct stat st;
		uint64_t set = MOUNT_ATTR_NOSUID_;
		unsigned recursive = r.n.a & O_FLAT ? 0 : AT_RECURSIVE_;
		int fd;

		if (r.kind != K_SOURCE)
			continue;
		step_path = r.s[0];
		if (r.n.a & O_OURS) {
			fd = open_tree(AT_FDCWD, r.s[0], OPEN_TREE_CLONE_ | AT_SYMLINK_NOFOLLOW | recursive);
		} else {
			int place = open_target(r.s[0]);
			if (place < 0 && r.n.a & O_OPTIONAL && absent()) {
				source_fd[i++] = -1;
				continue;
			}
			if (place < 0)
				return -1;
			fd = open_tree(place, "", OPEN_TREE_CLONE_ | AT_EMPTY_PATH | recursive);
			close(place);
		}
		if (fd < 0)
			return -1;
		if (r.n.a & O_PINNED) {
			if (fstat(fd, &st) < 0)
				return -1;
			if ((uint64_t)st.st_dev != r.n.c || (uint64_t)st.st_ino != r.n.d) {
				step_name = "pin";
				errno = ESTALE;
				return -1;
			}
		}
		if (!(r.n.a & O_DEVICES))
			set |= MOUNT_ATTR_NODEV_;
		if (r.n.a & O_READONLY)
			set |= MOUNT_ATTR_RDONLY_;
		if (set_attr(fd, "", AT_EMPTY_PATH | recursive, set, MS_PRIVATE_) < 0)
			return -1;
		source_fd[i++] = fd;
	}
	return 0;
}

/* Private, not slave: with slave propagation a mount that the host makes later would appear here, and writable. */
static int readonly_world(void)
{
	step_path = "/";
	return set_attr(AT_FDCWD, "/", AT_RECURSIVE_, MOUNT_ATTR_RDONLY_ | MOUNT_ATTR_NOSUID_ | MOUNT_ATTR_NODEV_, MS_PRIVATE_);
}

static int view_record(const struct record *r)
{
	int fd, saved;

	step_path = r->s[2] ? r->s[2] : r->s[1] ? r->s[1] : r->s[0];
	switch (r->kind) {
	case K_BASE: {
		/* One tmpfs serves every private directory. It is attached before parts of it are bound elsewhere:
		 * kernels before 6.15 refuse to clone from a detached mount. */
		const char *const options[] = {"mode", "755", "size", plan->tmpfs_size, "nr_inodes", plan->tmpfs_inodes, NULL};
		tmpfs_fd = new_filesystem("tmpfs", options, MOUNT_ATTR_NOSUID_ | MOUNT_ATTR_NODEV_);
		return tmpfs_fd < 0 ? -1 : attach(tmpfs_fd, r->s[0]);
	}
	case K_MKDIR:
		return mkdirat(tmpfs_fd, r->s[0], r->n.a);
	case K_LINK:
		return symlinkat(r->s[1], tmpfs_fd, r->s[0]);
	case K_FILE:
		/* n.d: the size to show; bytes beyond the content are a hole */
		if (!r->raw_length && !r->n.d)
			return mknodat(tmpfs_fd, r->s[0], S_IFREG | r->n.a, 0);
		fd = openat(tmpfs_fd, r->s[0], O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, r->n.a);
		if (fd < 0)
			return -1;
		if ((r->raw_length && write(fd, r->raw, r->raw_length) != (ssize_t)r->raw_length) ||
		    (r->n.d && ftruncate(fd, (off_t)r->n.d) < 0))
			goto fail;
		close(fd);
		return 0;
	case K_SEAL:
		/* The skeleton is complete. What is cloned from a read-only mount is read-only, so masks need no call of
		 * their own; directories that are to be written say so. The directory that the parts lie in is closed
		 * to everyone but init; nobody inside can open it again, the mount being read-only. */
		if (fchmodat(tmpfs_fd, r->s[0], 0, 0) < 0)
			return -1;
		return set_attr(tmpfs_fd, "", AT_EMPTY_PATH, MOUNT_ATTR_RDONLY_, 0);
	case K_TBIND:
		fd = open_tree(tmpfs_fd, r->s[0], OPEN_TREE_CLONE_);
		if (fd < 0)
			return -1;
		if (!(r->n.a & O_READONLY) && make_writable(fd) < 0)
			goto fail;
		if (attach(fd, r->s[1]) < 0 && !(r->n.a & O_OPTIONAL && absent()))
			goto fail;
		close(fd);
		return 0;
	case K_MASK: {
		/* A directory is covered by an empty directory, anything else by an empty file, neither of which can be
		 * opened. Looked at here and not in Python: either may have been made a moment ago. */
		struct stat st;
		int to = open_target(r->s[2]);
		if (to < 0)
			return (r->n.a & O_OPTIONAL && absent()) || out_of_reach() ? 0 : -1;
		fd = fstat(to, &st) < 0 ? -1 : open_tree(tmpfs_fd, S_ISDIR(st.st_mode) ? r->s[0] : r->s[1], OPEN_TREE_CLONE_);
		saved = fd < 0 ||
			syscall(NR_move_mount, fd, "", to, "", MOVE_MOUNT_F_EMPTY_PATH_ | MOVE_MOUNT_T_EMPTY_PATH_) < 0 ? errno : 0;
		close(to);
		if (fd >= 0)
			close(fd);
		errno = saved;
		/* Unlinked on the host after we had opened it: as absent as if it had never been there. */
		return !saved || (r->n.a & O_OPTIONAL && absent()) ? 0 : -1;
	}
	case K_ATTACH:
		fd = source_fd[r->n.b];
		if (fd < 0)
			return 0;      /* optional, and not there when it was opened */
		if ((r->n.a & O_OURS ? attach_ours : attach)(fd, r->s[0]) < 0)
			return -1;
		close(fd);
		source_fd[r->n.b] = -1;
		return 0;
	case K_PROTECT:
		/* Bound onto itself: read-only, and neither it nor (for a link) the link can be moved or unlinked,
		 * since a mount point is busy. */
		fd = open_target(r->s[0]);
		if (fd < 0)
			return (r->n.a & O_OPTIONAL && absent()) || out_of_reach() ? 0 : -1;
		saved = open_tree(fd, "", OPEN_TREE_CLONE_ | AT_RECURSIVE_ | AT_EMPTY_PATH);
		close(fd);
		fd = saved;
		if (fd < 0)
			return -1;
		if (r->n.a & O_READONLY && set_attr(fd, "", AT_EMPTY_PATH | AT_RECURSIVE_, MOUNT_ATTR_RDONLY_, 0) < 0)
			goto fail;
		if (attach(fd, r->s[0]) < 0 && !(r->n.a & O_OPTIONAL && absent()))
			goto fail;
		close(fd);
		return 0;
	case K_ALIAS:
		/* The same directory at a second place, with whatever has been mounted in it by now. */
		fd = open_target(r->s[0]);
		if (fd < 0)
			return -1;
		saved = open_tree(fd, "", OPEN_TREE_CLONE_ | AT_RECURSIVE_ | AT_EMPTY_PATH);
		close(fd);
		fd = saved;
		if (fd < 0)
			return -1;
		if (attach(fd, r->s[1]) < 0)
			goto fail;
		close(fd);
		return 0;
	case K_PROC: {
		/* Read-only as a whole: as root over 800 of its files could be written otherwise, and no list of the
		 * dangerous ones stays complete. */
		const char *const none[] = {NULL};
		step_path = "/proc";
		fd = new_filesystem("proc", none, MOUNT_ATTR_NOSUID_ | MOUNT_ATTR_NODEV_ | MOUNT_ATTR_NOEXEC_ |
		                                      (r->n.a & O_READONLY ? MOUNT_ATTR_RDONLY_ : 0));
		if (fd < 0)
			return -1;
		if (attach_ours(fd, step_path) < 0)
			goto fail;
		close(fd);
		return 0;
	}
	case K_DEVPTS: {
		const char *const options[] = {"ptmxmode", "0666", "mode", "620", NULL};
		fd = new_filesystem("devpts", options, MOUNT_ATTR_NOSUID_ | MOUNT_ATTR_NOEXEC_);
		if (fd < 0)
			return -1;
		if (attach_ours(fd, r->s[0]) < 0)
			goto fail;
		close(fd);
		return 0;
	}
	default:
		return 0;
	}
fail:
	saved = errno;
	close(fd);
	errno = saved;
	return -1;
}

static int build_view(void)
{
	struct record r;
	static const char *const names[K_COUNT] = {
		[K_BASE] = "tmpfs", [K_MKDIR] = "mkdir", [K_FILE] = "file", [K_LINK] = "symlink", [K_TBIND] = "mask",
		[K_ATTACH] = "attach", [K_PROTECT] = "protect", [K_PROC] = "proc", [K_DEVPTS] = "devpts", [K_MASK] = "mask", [K_SEAL] = "seal",
		[K_ALIAS] = "alias",
	};

	FOR_EACH_RECORD(r) {
		if (!names[r.kind])
			continue;
		step_name = names[r.kind];
		if (view_record(&r) < 0)
			return -1;
		mark(step_name);
	}
	return 0;
}

/* ---- init under bubblewrap: nothing that it was asked for is taken on trust ------------------------------------------------ */

enum { AGAIN = 124 };      /* init's status, and so bubblewrap's: start it once more */

static int is_null_device(const struct stat *st)
{
	return S_ISCHR(st->st_mode) && st->st_rdev == makedev(1, 3);
}

/* The mount that a descriptor lies on, and whether it is its root. Linux 5.8. */
static int mount_of(int fd, uint64_t *id, int *is_root)
{
	struct statx_ x;

	memset(&x, 0, sizeof x);
	if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_MNT_ID_, &x) < 0)
		return -1;
	if (!(x.mask & STATX_MNT_ID_) || !(x.attributes_mask & STATX_ATTR_MOUNT_ROOT_)) {
		errno = ENOSYS;
		return -1;
	}
	*id = x.mnt_id;
	*is_root = !!(x.attributes & STATX_ATTR_MOUNT_ROOT_);
	return 0;
}

/* As far as we can look; a directory that cannot be opened shows nothing to the command either, which has no more rights. */
static int is_empty(int fd)
{
	char path[64], buffer[1024];
	int opened;
	long n;

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	opened = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (opened < 0)
		return out_of_reach();
	n = syscall(SYS_getdents64, opened, buffer, sizeof buffer);
	close(opened);
	return n > 0 && n <= 48;      /* "." and ".." take 24 bytes each */
}

/* Under which conditions the command could reach what we cannot: it becomes another user. */
static int hidden_from_all(void)
{
	return out_of_reach() && !(plan->flags & (F_UID | F_GID | F_GROUPS));
}

/* Whether what bubblewrap has put at a place is what the plan says: a mount of its own, with these flags and this content. It
 * resolves names itself, links included, and by now a name may lead elsewhere than when the plan was made. */
static int check_place(const struct record *r)
{
	struct stat st;
	struct statfs fs;
	unsigned long wanted = ST_NOSUID_ | (r->n.a & O_READONLY ? ST_RDONLY_ : 0) | (r->n.a & O_DEVICES ? 0 : ST_NODEV_);
	int fd = open_target(r->s[0]), right = 0, is_mount = 0;
	uint64_t id;

	step_path = r->s[0];
	if (fd < 0)
		return r->n.a & O_OPTIONAL && (absent() || hidden_from_all()) ? 0 : -1;
	if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0 || mount_of(fd, &id, &is_mount) < 0)
		goto fail;
	switch (r->n.b) {
	case C_ANY:
		right = 1;
		break;
	case C_PINNED:
		right = (uint64_t)st.st_dev == r->n.c && (uint64_t)st.st_ino == r->n.d;
		break;
	case C_MASK:
		right = is_null_device(&st) || (fs.f_type == TMPFS_MAGIC_ && (S_ISDIR(st.st_mode) ? is_empty(fd) : !st.st_size));
		break;
	case C_SHOWN:
		right = fs.f_type == TMPFS_MAGIC_ && S_ISREG(st.st_mode) && (uint64_t)st.st_size == r->n.d;
		break;
	case C_TMPFS:
		right = fs.f_type == TMPFS_MAGIC_;
		break;
	case C_PROC:
		right = fs.f_type == PROC_MAGIC_;
		break;
	case C_DEVPTS:
		right = fs.f_type == DEVPTS_MAGIC_;
		break;
	case C_NODE:
		right = S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode) || S_ISDIR(st.st_mode);
		break;
	default:
		break;
	}
	close(fd);
	/* What the host keeps on a tmpfs, at a place that should be masked, looks much like a mask; but it is no mount. */
	if (!right || !is_mount || ((unsigned long)fs.f_flags & wanted) != wanted) {
		if (r->n.a & O_OPTIONAL)
			_exit(AGAIN);      /* a socket that was not there when bubblewrap was told what to cover */
		errno = ESTALE;
		return -1;
	}
	return 0;
fail:
	close(fd);
	return -1;
}

static int check_places(void)
{
	struct record r;

	FOR_EACH_RECORD(r)
		if (r.kind == K_CHECK && check_place(&r) < 0)
			return -1;
	return 0;
}

/* bubblewrap's way of making a mount read-only takes the devices from it. */
static int readonly_nodes(void)
{
	struct record r;

	FOR_EACH_RECORD(r)
		if (r.kind == K_CHECK && r.n.b == C_NODE && r.n.a & O_READONLY) {
			int fd = open_target(r.s[0]), failed;

			step_path = r.s[0];
			if (fd < 0)
				return -1;
			failed = set_attr(fd, "", AT_EMPTY_PATH | AT_RECURSIVE_, MOUNT_ATTR_RDONLY_, 0) < 0;
			close(fd);
			if (failed)
				return -1;
		}
	return 0;
}

/* bubblewrap's mounts are slaves of the host's: what is mounted there later appears here too, and as it is there. Only who has
 * power over the mount namespace can change that: root, under bubblewrap. (For others Landlock keeps it from being written.) */
static int private_mounts(void)
{
	if (!has_capability(CAP_SYS_ADMIN_))
		return 0;
	step_path = "/";
	return set_attr(AT_FDCWD, "/", AT_RECURSIVE_, 0, MS_PRIVATE_);
}

/* Undoes the octal escapes of /proc/self/mountinfo, in place. */
static void unescape(char *text)
{
	char *out = text;

	for (; *text; text++, out++) {
		*out = *text;
		if (text[0] == '\\' && text[1] && text[2] && text[3]) {
			*out = (char)((text[1] - '0') << 6 | (text[2] - '0') << 3 | (text[3] - '0'));
			text += 3;
		}
	}
	*out = 0;
}

/* As the nearest of the plan's places above a mount says. */
static int may_be_written(const char *place)
{
	struct record r;
	size_t longest = 0;
	int writable = 0;

	FOR_EACH_RECORD(r) {
		size_t n;

		if (r.kind != K_CHECK)
			continue;
		n = strcmp(r.s[0], "/") ? strlen(r.s[0]) : 0;
		if (n >= longest && !strncmp(place, r.s[0], n) && (!place[n] || place[n] == '/')) {
			longest = n;
			writable = !(r.n.a & O_READONLY);
		}
	}
	return writable;
}

/* Whether a mount is what its place shows. One that another covers cannot be reached, and bubblewrap leaves it as it is. */
static int is_in_view(const char *place, uint64_t id)
{
	int fd = open(place, O_PATH | O_NOFOLLOW | O_CLOEXEC), known, is_root;
	uint64_t found = 0;

	if (fd < 0)
		return !absent() && !hidden_from_all();
	known = mount_of(fd, &found, &is_root) == 0;
	close(fd);
	return !known || found == id;
}

/* The field of that number (from 1) of a line of mountinfo, as a string. Only a space ends one: other white space is not escaped. */
static int take_field(const char *line, int number, char *out, size_t room)
{
	size_t length;

	while (--number > 0) {
		line = strchr(line, ' ');
		if (!line)
			return -1;
		line++;
	}
	length = strcspn(line, " ");
	if (!length || length >= room)
		return -1;
	memcpy(out, line, length);
	out[length] = 0;
	return 0;
}

/* Every mount is read-only but those that the plan names, and what lies in them. */
static int check_mounts(void)
{
	static char text[65536], place[PATH_MAX];
	size_t held = 0;
	int fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);

	step_path = "/proc/self/mountinfo";
	if (fd < 0)
		return -1;
	for (;;) {
		ssize_t n = read(fd, text + held, sizeof text - 1 - held);
		char *line = text, *end;

		if (n < 0 || (n == 0 && held) || held == sizeof text - 1) {
			errno = n < 0 ? errno : EINVAL;
			close(fd);
			return -1;
		}
		if (n == 0)
			break;
		held += (size_t)n;
		text[held] = 0;
		for (; (end = strchr(line, '\n')); line = end + 1) {
			char options[256], number[24];

			*end = 0;
			if (take_field(line, 1, number, sizeof number) < 0 || take_field(line, 5, place, sizeof place) < 0 ||
			    take_field(line, 6, options, sizeof options) < 0 || place[0] != '/')
				goto bad;
			unescape(place);
			if ((strncmp(options, "ro", 2) || (options[2] && options[2] != ',')) && !may_be_written(place) &&
			    is_in_view(place, strtoull(number, NULL, 10)))
				goto bad;
		}
		held = strlen(line);
		memmove(text, line, held);
	}
	close(fd);
	return 0;
bad:
	close(fd);
	step_path = place;
	errno = EROFS;
	return -1;
}

/* Pid, mount, IPC, network and user namespace of the monitor, which lives outside. */
static const char *const namespace_names[] = {"pid", "mnt", "ipc", "net", "user"};
enum { NAMESPACES = sizeof namespace_names / sizeof *namespace_names };
static uint64_t outside[NAMESPACES];

static uint64_t namespace_id(const char *name)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof path, "/proc/self/ns/%s", name);
	return stat(path, &st) < 0 ? 0 : st.st_ino;
}

static int check_namespaces(void)
{
	if (getpid() != 1) {
		errno = EPERM;
		return -1;
	}
	for (size_t i = 0; i < NAMESPACES; i++) {
		uint64_t here = namespace_id(namespace_names[i]);

		step_path = namespace_names[i];
		if (!strcmp(namespace_names[i], "net") && !(plan->flags & F_NETNS))
			continue;
		/* bubblewrap maps one user only. Where the command becomes another one, root does without a user namespace. */
		if (!strcmp(namespace_names[i], "user") && plan->flags & (F_UID | F_GID | F_GROUPS))
			continue;
		if (!here || here == outside[i]) {
			errno = EPERM;
			return -1;
		}
	}
	return 0;
}

/* ---- init without a pid namespace: a subreaper --------------------------------------------------------------------------------
 *
 * Every process of the tree has a chain of parents that ends here, and an orphan becomes our child (PR_SET_CHILD_SUBREAPER). Killing
 * the whole tree again and again until there are no children ends it: a process that is killed makes no more children (fork fails
 * with a signal pending), and those that it had become ours.
 */

/* Every process of the host, as it was found; those that init is a parent of are marked. */
enum { MAX_PROCESSES = 65536 };
static struct process {
	pid_t pid, parent, group;
	uint32_t threads;
	uint64_t start, ticks, waited, addresses, written;
	struct amount { uint64_t ticks, written; } came, gone, owed;      /* since the last look, see carry_over() */
	char marked, known, state, name[16];
} processes[MAX_PROCESSES];
static size_t process_count;

/* "pid (name) state ppid ... starttime": the name may hold anything, parentheses too. starttime is field 22. */
static int read_process(pid_t pid, struct process *out)
{
	char path[64], text[1024], *open_, *close_, *at;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	if (read_text(path, text, sizeof text) < 0)
		return -1;
	open_ = strchr(text, '(');
	close_ = strrchr(text, ')');
	if (!open_ || !close_ || strlen(close_) < 5)
		return -1;
	*close_ = 0;
	memset(out, 0, sizeof *out);
	out->pid = pid;
	strncpy(out->name, open_ + 1, sizeof out->name - 1);
	out->state = close_[2];
	at = close_ + 4;      /* behind the state, which is field 3 */
	for (int field = 4; field <= 23; field++) {
		uint64_t value = strtoull(at, &at, 10);

		if (*at != ' ')
			return -1;
		if (field == 4)
			out->parent = (pid_t)value;
		else if (field == 5)
			out->group = (pid_t)value;
		else if (field >= 14 && field <= 17) {
			out->ticks += value;      /* its own, and those of the children that it has waited for; user and system */
			out->waited += field >= 16 ? value : 0;
		} else if (field == 20)
			out->threads = (uint32_t)value;
		else if (field == 22)
			out->start = value;
		else if (field == 23)
			out->addresses = value;
	}
	return 0;
}

static struct process *find_process(pid_t pid)
{
	size_t low = 0, high = process_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (processes[middle].pid == pid)
			return processes + middle;
		if (processes[middle].pid < pid)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

static int by_pid(const void *a, const void *b)
{
	pid_t x = ((const struct process *)a)->pid, y = ((const struct process *)b)->pid;
	return x < y ? -1 : x > y;
}

/* The tree below this process, in one look at /proc. Returns how many are in it. */
static size_t find_tree(void)
{
	static char buffer[32768] __attribute__((aligned(8)));
	int dir = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC), sorted = 1, changed;
	size_t found = 0;
	long n;

	process_count = 0;
	if (dir < 0)
		return 0;
	while ((n = syscall(SYS_getdents64, dir, buffer, sizeof buffer)) > 0)
		for (long at = 0; at < n;) {
			unsigned short length;
			const char *name = buffer + at + 19;      /* struct linux_dirent64: ino 8, off 8, reclen 2, type 1 */
			struct process *p = processes + process_count;

			memcpy(&length, buffer + at + 16, sizeof length);
			at += length;
			if (*name < '1' || *name > '9' || process_count == MAX_PROCESSES ||
			    read_process((pid_t)strtol(name, NULL, 10), p) < 0)
				continue;
			sorted &= !process_count || p[-1].pid < p->pid;
			process_count++;
		}
	close(dir);
	if (!sorted)
		qsort(processes, process_count, sizeof *processes, by_pid);
	do {
		changed = 0;
		for (size_t i = 0; i < process_count; i++) {
			struct process *p = processes + i, *parent;

			if (p->marked)
				continue;
			if (p->parent == getpid() || ((parent = find_process(p->parent)) && parent->marked)) {
				p->marked = 1;
				found++;
				changed = 1;
			}
		}
	} while (changed);
	return found;
}

/* Whether a process of the tree is still the one that was found, in the group in which it was. */
static int in_own_group(const struct process *p)
{
	struct process now;

	return read_process(p->pid, &now) == 0 && now.start == p->start && now.group == p->group;
}

/* Our own children, whose numbers cannot be given to other processes before we have waited for them. Quicker than the look at
 * /proc below, for those that are never there for long: a process that forks and ends, again and again. */
static void kill_children(void)
{
	static char text[8192];
	char path[64];
	size_t held = 0;
	ssize_t n;
	int fd;

	snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;      /* a kernel without that list; then only the look at /proc */
	while ((n = read(fd, text + held, sizeof text - 1 - held)) > 0) {
		char *at = text, *end;

		held += (size_t)n;
		text[held] = 0;
		for (; (end = strchr(at, ' ')); at = end + 1) {
			long child = strtol(at, NULL, 10);
			if (child > 1)
				kill((pid_t)child, SIGKILL);
		}
		held = strlen(at);
		memmove(text, at, held);
	}
	close(fd);
}

/* All of the tree at once: one after the other from the top, what is further down would have time to make more. A number may
 * have been given to another process since it was found: the pidfd is opened first, and then it is asked whose it is. */
static void kill_tree(void)
{
	pid_t last = 0;

	find_tree();
	for (size_t i = 0; i < process_count; i++) {
		struct process now;
		int fd;

		if (!processes[i].marked)
			continue;
		/* A whole group at once, also those that have been born since: fork and this exclude each other. Only processes of
		 * the tree can be in one, since it lies in a session that one of them made. */
		if (processes[i].group != getpgrp() && processes[i].group > 1 && processes[i].group != last) {
			last = processes[i].group;
			if (in_own_group(processes + i))
				kill(-last, SIGKILL);
		}
		fd = (int)syscall(NR_pidfd_open, processes[i].pid, 0);
		if (fd < 0)
			continue;
		if (read_process(processes[i].pid, &now) == 0 && now.start == processes[i].start)
			(void)syscall(NR_pidfd_send_signal, fd, SIGKILL, NULL, 0);
		close(fd);
	}
}

static int become_subreaper(void)
{
	struct process self;

	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
		return -1;
	/* Without a /proc of this pid namespace nothing could be found, and so nothing be ended. */
	step_path = "/proc";
	if (read_process(getpid(), &self) < 0)
		return -1;
	errno = ENOENT;
	return self.parent == getppid() ? 0 : -1;
}

/* Ends the tree. Returns the status of `wanted`, if it was among the children; else `status`. */
static int end_children(pid_t wanted, int status)
{
	const struct timespec moment = {0, 3000000};
	sigset_t chld;

	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	for (;;) {
		int st;
		pid_t pid = 0;

		/* Not without end: they may be made, and end, as fast as they are reaped. But a look at all of /proc costs as much
		 * as reaping hundreds. */
		for (int i = 0; i < 4096 && (pid = waitpid(-1, &st, WNOHANG)) > 0; i++)
			if (pid == wanted)
				status = st;
		if (pid < 0 && errno == ECHILD)
			return status;
		kill_children();
		kill_tree();
		/* Blocked here and in the monitor. What cannot be killed yet (it sleeps in the kernel) is tried again. */
		sigtimedwait(&chld, NULL, &moment);
	}
}

/* A directory that its owner may look into and change, opened. By descriptors: a name could have become a link meanwhile, since
 * other processes of the same user may be about. */
static int open_directory(int at, const char *name)
{
	char path[64];
	int opened, fd = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return -1;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	(void)chmod(path, 0700);
	opened = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	close(fd);
	return opened;
}

/* Removes what is no directory, and moves directories to the top: so none is too deep to be reached. Returns how much it did. */
static unsigned long empty_directory(int dir, int top, char *buffer, size_t room, uint64_t *number)
{
	unsigned long done = 0;
	long n;

	lseek(dir, 0, SEEK_SET);
	while ((n = syscall(SYS_getdents64, dir, buffer, room)) > 0)
		for (long at = 0; at < n;) {
			unsigned short length;
			const char *entry = buffer + at + 19;
			char name[48];

			memcpy(&length, buffer + at + 16, sizeof length);
			at += length;
			if (!strcmp(entry, ".") || !strcmp(entry, ".."))
				continue;
			if (unlinkat(dir, entry, 0) == 0 || unlinkat(dir, entry, AT_REMOVEDIR) == 0) {
				done++;
			} else if (dir != top) {
				/* Renaming a directory writes to it: "..". */
				int inner = open_directory(dir, entry);
				if (inner >= 0)
					close(inner);
				snprintf(name, sizeof name, ".%llx", (unsigned long long)++*number);
				done += renameat(dir, entry, top, name) == 0;
			}
		}
	return done;
}

static void remove_tree(const char *path)
{
	static char outer[8192] __attribute__((aligned(8))), inner[8192] __attribute__((aligned(8)));
	int top = open_directory(AT_FDCWD, path);
	unsigned long done;
	uint64_t number = 0;

	if (top < 0)
		return;
	/* Names that the command could not have made beforehand. */
	(void)syscall(SYS_getrandom, &number, sizeof number, 1 /* GRND_NONBLOCK */);
	do {
		long n;

		done = empty_directory(top, top, inner, sizeof inner, &number);
		lseek(top, 0, SEEK_SET);
		while ((n = syscall(SYS_getdents64, top, outer, sizeof outer)) > 0)
			for (long at = 0; at < n;) {
				unsigned short length;
				const char *entry = outer + at + 19;
				int dir;

				memcpy(&length, outer + at + 16, sizeof length);
				at += length;
				if (!strcmp(entry, ".") || !strcmp(entry, "..") || (dir = open_directory(top, entry)) < 0)
					continue;
				done += empty_directory(dir, top, inner, sizeof inner, &number);
				close(dir);
				done += unlinkat(top, entry, AT_REMOVEDIR) == 0;
			}
	} while (done);
	close(top);
	rmdir(path);
}

/* The last thing before the end: as the command's user, whose files they are, and with no more rights than it had. */
static void tidy(void)
{
	struct record r;

	FOR_EACH_RECORD(r)
		if (r.kind == K_TIDY && switch_user() == 0)
			remove_tree(r.s[0]);
}

/* The end of init, of which the kernel makes the end of everything else where there is a pid namespace. */
static void __attribute__((noreturn)) leave(int status)
{
	if (plan->flags & F_NO_VIEW) {
		end_children(0, 0);
		tidy();
	}
	_exit(status);
}

/* The inherited working directory is still the old, uncovered one; entering it by name puts us on the mounts. A
 * directory that has no name any more could lead ("..") to places that are masked by name: use the root instead. */
static int enter_cwd(void)
{
	step_path = cwd;
	return chdir(cwd);
}

/* ---- command: the last steps before exec, in memory shared with init ------------------------------------------------ */

static int close_on_exec(void)
{
	uint32_t from = 3;

	/* Only 0-2 and pass_fds survive the exec. Marked, not closed: they are still needed until then. */
	for (size_t i = 0; i <= keep_count; i++) {
		uint32_t to = i < keep_count ? keep[i] : ~0u;
		if (to > from && syscall(NR_close_range, from, i < keep_count ? to - 1 : ~0u, CLOSE_RANGE_CLOEXEC_) < 0)
			return -1;
		if (to >= from)
			from = to + 1;
	}
	return 0;
}

/* A device that was opened outside lies on a writable mount there: fchmod(0) would change the host's /dev/null, if the
 * command's user owns it. The same device of the view takes its place. */
static int own_devices(void)
{
	static const struct { unsigned minor; const char *path; } known[] = {
		{3, "/dev/null"}, {5, "/dev/zero"}, {7, "/dev/full"}, {9, "/dev/urandom"},
	};

	if (plan->flags & F_NO_VIEW)
		return 0;      /* there is no other /dev */
	for (size_t i = 0; i < 3 + keep_count; i++) {
		int fd = i < 3 ? (int)i : (int)keep[i - 3], mode = fcntl(fd, F_GETFL), flags = fcntl(fd, F_GETFD), fresh;
		struct stat st;

		if (mode < 0 || flags & FD_CLOEXEC || fstat(fd, &st) < 0 || !S_ISCHR(st.st_mode) || st.st_rdev >> 8 != 1)
			continue;
		for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
			if ((st.st_rdev & 0xff) != known[k].minor)
				continue;
			step_path = known[k].path;
			fresh = open(known[k].path, (mode & (O_ACCMODE | O_APPEND | O_NONBLOCK)) | O_CLOEXEC | O_NOCTTY);
			if (fresh < 0 && absent())
				break;      /* a host without that device; then nothing is shown there either */
			if (fresh < 0 || dup3(fresh, fd, 0) < 0)
				return -1;
			close(fresh);
		}
	}
	return 0;
}

static int new_session(void)
{
	/* A leader only when asked: setsid(1) and os.setpgid() fail or behave differently for one that is already. */
	if (plan->flags & F_SETSID)
		return setsid() < 0 ? -1 : 0;
	if (plan->flags & F_SETPGID)
		return setpgid(0, 0);
	return 0;
}

static int has_capability(int number)
{
	struct cap_header h = {CAPABILITY_VERSION_3, 0};
	struct cap_data d[2];

	return syscall(SYS_capget, &h, d) == 0 && d[number / 32].effective & (1u << number % 32);
}

/* What the command keeps: nothing, or root's power over files that are not its own, in our user namespace. */
static uint32_t kept_capabilities(void)
{
	return plan->flags & F_ROOT_FILES ? 1u << 0 /* CHOWN */ | 1u << 1 /* DAC_OVERRIDE */ | 1u << 3 /* FOWNER */ : 0;
}

/* With NOROOT set, being root brings nothing at an exec; what is to stay has to be ambient (man 7 capabilities). */
static int keep_over_exec(void)
{
	struct cap_header h = {CAPABILITY_VERSION_3, 0};
	struct cap_data d[2];

	if (syscall(SYS_capget, &h, d) < 0)
		return -1;
	d[0].inheritable = kept_capabilities();
	d[1].inheritable = 0;
	if (syscall(SYS_capset, &h, d) < 0)
		return -1;
	for (int c = 0; c < 32; c++)
		if (kept_capabilities() & (1u << c) && prctl(PR_CAP_AMBIENT_, 2 /* RAISE */, c, 0, 0) < 0)
			return -1;
	return 0;
}

static int drop_bounding(void)
{
	int c = 0;

	/* In a user namespace of our own we may; elsewhere an ordinary user may not, and has no_new_privs, by which nothing can be
	 * regained (verified below). */
	if (plan->flags & (F_WRAPPED | F_NO_VIEW) && !has_capability(CAP_SETPCAP_))
		return prctl(PR_CAP_AMBIENT_, 4 /* CLEAR_ALL */, 0, 0, 0);
	while (c < 32 && kept_capabilities() & (1u << c) ? 1 : prctl(PR_CAPBSET_DROP, c, 0, 0, 0) == 0)
		c++;
	if (errno != EINVAL || c < 38)      /* EINVAL ends the list; every supported kernel knows at least 38 */
		return -1;
	/* Ambient first: NO_CAP_AMBIENT_RAISE does not clear what is there. */
	if (prctl(PR_CAP_AMBIENT_, 4 /* CLEAR_ALL */, 0, 0, 0) < 0)
		return -1;
	if (kept_capabilities() && keep_over_exec() < 0)
		return -1;
	return prctl(PR_SET_SECUREBITS, SECUREBITS_, 0, 0, 0);
}

/* Raw calls: libc would tell all threads, and this one shares its memory with init. */
static int switch_user(void)
{
	if (plan->flags & F_GROUPS && syscall(SYS_setgroups, group_count, group_list) < 0)
		return -1;
	if (plan->flags & F_GID && syscall(SYS_setresgid, plan->gid, plan->gid, plan->gid) < 0)
		return -1;
	if (plan->flags & F_UID && syscall(SYS_setresuid, plan->uid, plan->uid, plan->uid) < 0)
		return -1;
	return 0;
}

static int limit_capabilities(uint32_t kept)
{
	struct cap_header h = {CAPABILITY_VERSION_3, 0};
	struct cap_data left[2] = {{kept, kept, kept}, {0, 0, 0}};
	return (int)syscall(SYS_capset, &h, left);
}

static int drop_capabilities(void)
{
	return limit_capabilities(kept_capabilities());
}

static int inherited_rule(int ruleset, int fd, uint64_t handled)
{
	struct landlock_path rule = {handled & (LL_WRITE_FILE | LL_TRUNCATE | LL_IOCTL_DEV | LL_READ_FILE), fd};
	int mode = fcntl(fd, F_GETFL);

	if (mode < 0)
		return 0;      /* closed in the caller, closed here */
	if ((mode & O_ACCMODE) == O_RDONLY)
		rule.access &= LL_IOCTL_DEV | LL_READ_FILE;
	if (!rule.access)
		return 0;
	/* "echo > /dev/stdout" opens the file behind fd 1 anew. Pipes and sockets have no place in a hierarchy
	 * (EBADFD) and need no rule. */
	if (syscall(NR_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH_, &rule, 0) < 0 && errno != EBADFD)
		return -1;
	return 0;
}

/* A file inherited for reading lies on the caller's writable mount: truncate("/proc/self/fd/0") would empty it.
 * Handling TRUNCATE makes every open() walk to the root (+27 %), so only where there is such a file. */
static int readonly_file(int fd)
{
	struct stat st;
	int mode = fcntl(fd, F_GETFL);

	return mode >= 0 && (mode & O_ACCMODE) == O_RDONLY && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

/* Whether a descriptor is of something that no rule could be about, a pipe or a socket, or that every ruleset has one about: the null
 * device. */
static int needs_no_rule(int fd)
{
	struct stat st, null;
	struct statfs fs;

	if (fcntl(fd, F_GETFL) < 0)
		return 1;
	if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0)
		return 0;
	if (fs.f_type == PIPEFS_MAGIC_ || fs.f_type == SOCKFS_MAGIC_)
		return 1;
	return S_ISCHR(st.st_mode) && stat("/dev/null", &null) == 0 && null.st_dev == st.st_dev && null.st_ino == st.st_ino;
}

/* A ruleset with a rule for what this run has inherited would let the next one open it. */
static int streams_need_no_rules(void)
{
	for (int fd = 0; fd < 3; fd++)
		if (!needs_no_rule(fd))
			return 0;
	for (size_t i = 0; i < keep_count; i++)
		if (!needs_no_rule((int)keep[i]))
			return 0;
	return 1;
}

/* Rules while the privileges last (a root may lie under a directory that only they can search), the restriction
 * itself once they are gone. */
static int ruleset_fd = -1, ruleset_is_new;

static int landlock_rules(void)
{
	struct landlock_attr a = {plan->ll_fs & ~LL_TRUNCATE, plan->ll_net, plan->ll_scoped};
	struct record r;
	struct stat st;
	int ruleset, need_truncate = plan->flags & F_NO_VIEW;      /* no mount is read-only there */

	if (!plan->ll_fs && !plan->ll_net && !plan->ll_scoped)
		return 0;
	if (plan->flags & F_RULESET && streams_need_no_rules()) {
		/* Made from the same records, and the caller has seen that they mean the same files. */
		if (plan->kept >= 0) {
			ruleset_fd = plan->kept;
			return 0;
		}
		ruleset_is_new = 1;
	}
	for (int fd = 0; fd < 3; fd++)
		need_truncate |= readonly_file(fd);
	for (size_t i = 0; i < keep_count; i++)
		need_truncate |= readonly_file((int)keep[i]);
	if (need_truncate)
		a.fs = plan->ll_fs;
	ruleset = (int)syscall(NR_landlock_create_ruleset, &a, a.scoped ? sizeof a : a.net ? 16 : 8, 0);
	if (ruleset < 0)
		return -1;
	FOR_EACH_RECORD(r) {
		struct landlock_path rule;

		if (r.kind != K_RULE)
			continue;
		step_path = r.s[0];
		rule.fd = open_target(r.s[0]);
		if (rule.fd < 0) {
			if (r.n.a & O_OPTIONAL && absent())
				continue;
			return -1;
		}
		rule.access = r.n.c & a.fs;
		if (fstat(rule.fd, &st) < 0)
			return -1;
		if (!S_ISDIR(st.st_mode))
			rule.access &= LL_EXECUTE | LL_READ_FILE | LL_WRITE_FILE | LL_TRUNCATE | LL_IOCTL_DEV;
		if (rule.access && syscall(NR_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH_, &rule, 0) < 0)
			return -1;
		close(rule.fd);
	}
	step_path = NULL;
	for (int fd = 0; fd < 3; fd++)
		if (inherited_rule(ruleset, fd, a.fs) < 0)
			return -1;
	for (size_t i = 0; i < keep_count; i++)
		if (inherited_rule(ruleset, (int)keep[i], a.fs) < 0)
			return -1;
	ruleset_fd = ruleset;
	return 0;
}

static int landlock_restrict(void)
{
	if (ruleset_fd < 0)
		return 0;
	return (int)syscall(NR_landlock_restrict_self, ruleset_fd, 0);
}

static int set_limits(void)
{
	struct record r;

	FOR_EACH_RECORD(r)
		if (r.kind == K_RLIMIT) {
			struct rlimit now, limit = {r.n.c, r.n.d};

			/* Never raised: what the caller lives under binds the command too. */
			if (getrlimit((int)r.n.a, &now) < 0)
				return -1;
			if (limit.rlim_max > now.rlim_max)
				limit.rlim_max = now.rlim_max;
			if (limit.rlim_cur > limit.rlim_max)
				limit.rlim_cur = limit.rlim_max;
			if (setrlimit((int)r.n.a, &limit) < 0)
				return -1;
		}
	return 0;
}

/* The belt that checks the braces: exec is reached only by a process that the kernel itself says is powerless. */
static int verify(void)
{
	struct cap_header h = {CAPABILITY_VERSION_3, 0};
	struct cap_data d[2];

	if (syscall(SYS_capget, &h, d) < 0)
		return -1;
	for (int i = 0; i < 2; i++)
		if ((d[i].effective | d[i].permitted | d[i].inheritable) & ~(i ? 0 : kept_capabilities())) {
			errno = EPERM;
			return -1;
		}
	if (prctl(PR_GET_NO_NEW_PRIVS_, 0, 0, 0, 0) != 1) {
		errno = EPERM;
		return -1;
	}
	return 0;
}

static int restore_signals(void)
{
	struct sigaction ignore;

	memset(&ignore, 0, sizeof ignore);
	ignore.sa_handler = SIG_IGN;
	if (sigchld_ignored && sigaction(SIGCHLD, &ignore, NULL) < 0)
		return -1;
	umask(original_umask);
	return sigprocmask(SIG_SETMASK, &original_mask, NULL);
}

static int listener_fd = -1;               /* where connect() is answered; written by the command, used by init */

static int filter(void)
{
	struct record r;

	FOR_EACH_RECORD(r)
		if (r.kind == K_FILTER) {
			struct bpf_program p = {(unsigned short)(r.raw_length / 8), r.raw};
			unsigned flags = plan->flags & F_LISTENER ? SECCOMP_FILTER_FLAG_NEW_LISTENER_ : 0;
			/* Since 5.19 an answered call is not restarted for a signal: a connect() that has been made must not
			 * be made a second time. Older kernels do not know the flag (EINVAL). */
			long fd = flags ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER_,
				flags | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV_, &p) : -1;
			if (fd < 0 && (!flags || errno == EINVAL))
				fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER_, flags, &p);
			if (fd < 0)
				return -1;
			/* The table of descriptors is shared with init until the exec, which closes this one here only. */
			if (flags)
				listener_fd = (int)fd;
		}
	return 0;
}

/* Each candidate in turn; the first error that says more than "not here" wins, as in _posixsubprocess.c. */
static int execute(void)
{
	int telling = 0, last = ENOENT;

	failure.reached_exec = 1;
	for (size_t i = 0; candidates[i]; i++) {
		execve(candidates[i], command_argv, environ);
		last = errno;
		if (!absent() && !telling)
			telling = errno;
	}
	errno = telling ? telling : last;
	failure.is_exec = 1;
	return -1;
}

struct step { const char *name; int (*run)(void); };

struct sched_attr_ { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t runtime, deadline, period; };
static struct sched_attr_ usual;           /* how the caller is scheduled */
static int is_first;                       /* whether the launcher goes before everybody else; see be_first() */

static int be_as_usual(void)
{
	return is_first ? (int)syscall(SYS_sched_setattr, 0, &usual, 0) : 0;
}

static const struct step command_steps[] = {
	{"schedule", be_as_usual}, {"devices", own_devices}, {"close_fds", close_on_exec}, {"session", new_session}, {"landlock_rules", landlock_rules},
	{"bounding_set", drop_bounding}, {"user", switch_user}, {"capabilities", drop_capabilities},
	{"landlock", landlock_restrict}, {"rlimits", set_limits}, {"verify", verify}, {"signals", restore_signals},
	{"seccomp", filter}, {"exec", execute},
};

static int command_main(void *unused)
{
	(void)unused;
	mark("vfork");
	for (size_t i = 0; i < sizeof command_steps / sizeof *command_steps; i++) {
		step_name = command_steps[i].name;
		step_path = NULL;
		if (command_steps[i].run() < 0) {
			failure.step = step_name;
			failure.path = step_path;
			failure.error = errno ? errno : EINVAL;
			break;
		}
		mark(step_name);
#ifdef TIMING
		if (command_steps[i].run == restore_signals)
			tell_marks();      /* the filter and the exec come after this, and are what is left of the total */
#endif
	}
	_exit(127);
}

/* ---- init: after the command runs -------------------------------------------------------------------------------- */

static pid_t command_pid;

/* The kernel turns the pid in SCM_CREDENTIALS into the receiver's numbering, which is how the caller learns the
 * command's pid outside; init may name another process since it is privileged in its own namespace (man 7 unix). */
static int say_running(void)
{
	uint32_t type[2] = {M_RUNNING, 0};
	struct iovec io = {type, sizeof type};
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(3 * sizeof(int))];
	} control;
	struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	struct ucred who = {command_pid, geteuid(), getegid()};
	/* The command, which shares our descriptors until its exec, has left the ruleset open. */
	int fds[3] = {-1, -1, ruleset_is_new ? ruleset_fd : namespace_fd}, failed;
	size_t size = (fds[2] < 0 ? 2 : 3) * sizeof *fds;
	struct cmsghdr *c;

	memset(&control, 0, sizeof control);
	fds[0] = (int)syscall(NR_pidfd_open, getpid(), 0);
	fds[1] = (int)syscall(NR_pidfd_open, command_pid, 0);
	if (fds[0] < 0 || fds[1] < 0)
		return -1;
	c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = 2 /* SCM_CREDENTIALS */;
	c->cmsg_len = CMSG_LEN(sizeof who);
	memcpy(CMSG_DATA(c), &who, sizeof who);
	c = CMSG_NXTHDR(&m, c);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(size);
	memcpy(CMSG_DATA(c), fds, size);
	m.msg_controllen = CMSG_SPACE(sizeof who) + CMSG_SPACE(size);
	failed = sendmsg(launch_socket, &m, MSG_NOSIGNAL) < 0;
	if (failed && errno == EPERM) {
		/* Without the power over its pid namespace a process may name no other; then the caller finds the pid by the pidfd. */
		type[1] = 1;
		who.pid = getpid();
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &who, sizeof who);
		failed = sendmsg(launch_socket, &m, MSG_NOSIGNAL) < 0;
	}
	failed = failed && errno != EPIPE && errno != ECONNRESET;
	close(fds[0]);
	close(fds[1]);
	return failed ? -1 : 0;
}

static void only_keep(int *fds, size_t n)
{
	uint32_t sorted[16], from = 0;

	for (size_t i = 0; i < n; i++)
		sorted[i] = (uint32_t)fds[i];
	qsort(sorted, n, sizeof *sorted, by_number);
	for (size_t i = 0; i < n; i++) {
		if (sorted[i] > from)
			syscall(NR_close_range, from, sorted[i] - 1, 0);
		if (sorted[i] + 1 > from)
			from = sorted[i] + 1;
	}
	syscall(NR_close_range, from, ~0u, 0);
}

/* Names of what is still alive, for the report. Reads /proc with raw getdents: opendir() allocates. */
static pid_t connector_pid;
static int connector_ended;                /* too soon: killed, say; what the command is refused from then on is not seen */

#include "usage.h"

static uint32_t name_tree(char *names, size_t room)
{
	uint32_t count = (uint32_t)find_tree();
	size_t used = 0;

	for (size_t i = 0; i < process_count && room - used > 32; i++)
		if (processes[i].marked)
			used += (size_t)snprintf(names + used, room - used, "%s\n", processes[i].name);
	return count;
}

static uint32_t name_survivors(char *names, size_t room)
{
	static char buffer[8192] __attribute__((aligned(8)));
	uint32_t count = 0;
	size_t used = 0;
	int dir = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	long n;

	if (dir < 0)
		return 0;
	while ((n = syscall(SYS_getdents64, dir, buffer, sizeof buffer)) > 0)
		for (long at = 0; at < n;) {
			unsigned short length;
			const char *name = buffer + at + 19;      /* struct linux_dirent64: ino 8, off 8, reclen 2, type 1 */
			char path[64];
			ssize_t got;
			int fd;

			memcpy(&length, buffer + at + 16, sizeof length);
			at += length;
			if (*name < '1' || *name > '9' || !strcmp(name, "1"))
				continue;
			count++;
			snprintf(path, sizeof path, "/proc/%.20s/comm", name);
			fd = open(path, O_RDONLY | O_CLOEXEC);
			if (fd < 0)
				continue;
			if (room - used > 32) {
				got = read(fd, names + used, 16);
				if (got > 0) {
					used += (size_t)got;
					if (names[used - 1] != '\n')
						names[used++] = '\n';
				}
			}
			close(fd);
		}
	close(dir);
	return count;
}


/* 1: the command has ended; 2: nobody is left; 4: there may be more to reap. A few at a time: processes can be made and
 * end as fast as they are reaped, and init has other things to look at. */
static int reap(int *status)
{
	int st, result = 0;
	pid_t pid = 0;

	for (int i = 0; i < 64; i++) {
		pid = waitpid(-1, &st, WNOHANG);
		if (pid <= 0)
			break;
		if (WIFSTOPPED(st)) {
			/* It has asked to be traced by its parent; nobody here will. */
			(void)syscall(SYS_ptrace, 17 /* PTRACE_DETACH */, pid, 0, WSTOPSIG(st));
		} else if (pid == command_pid) {
			*status = st;
			result |= 1;
		} else if (pid == connector_pid) {
			connector_pid = 0;
			connector_ended = !(WIFEXITED(st) && WEXITSTATUS(st) == 0);      /* 0: there was nobody left who could call */
		}
	}
	/* Every process in the namespace has a chain of parents that ends here, so "no children" means "empty". */
	return result | (pid < 0 && errno == ECHILD ? 2 : 0) | (pid > 0 ? 4 : 0);
}

static void forward(const int32_t *request)
{
	int signal_number = request[0];

	if (!command_pid)
		return;
	/* The command is a member of init's group unless it made one; -1 would be too much, its own group is right. */
	if (request[1]) {
		pid_t group = getpgid(command_pid);
		if (group > 1 && group != getpgrp())
			kill(-group, signal_number);
		else if (!(plan->flags & F_NO_VIEW))
			/* init's own group: every member but init itself, which has them all blocked */
			kill(0, signal_number);
	} else {
		kill(command_pid, signal_number);
	}
}

/* ---- connector: connect() is made here, and what is refused is told -------------------------------------------------------------------------------------
 *
 * A socket that the host binds after the launch has no mask, and neither a read-only mount nor a network namespace stops
 * a connect() to it; Landlock does from ABI 9. So connect() is a notified call (man 2 seccomp_unotify): at the first one
 * init forks a process that copies the address, takes a copy of the socket, decides, and makes the call itself. It never
 * tells the kernel to go on with the caller's own call: by then another thread could have put another socket or address
 * in its place.
 *
 * The other notified calls are those that the filter refuses: an answer of ours instead of the kernel's, and a word to the caller.
 *
 * A process of its own, because everything here works on descriptors and paths of the command's, any of which can be made
 * to block for ever; init has to go on watching. It has the command's user and CAP_SYS_PTRACE, nothing else. The command
 * can kill it, and then it can connect to nothing any more.
 */

enum { PENDING = 1024 };
struct pending {
	uint64_t id;
	int64_t deadline;                  /* of SO_SNDTIMEO, in ms; -1: none */
	int fd, flags, at_file;
	socklen_t length;
	struct sockaddr_storage address;
};
static struct pending pending[PENDING];    /* blocking calls that are not done; fd 0 marks a free place */
static size_t pending_count;
static struct { dev_t dev; ino_t ino; } granted[32];      /* sockets of the host that the policy names */
static size_t granted_count;

static dev_t own_devices_of[16];           /* under bubblewrap: its tmpfs mounts */
static size_t own_count;

static void find_granted(void)
{
	struct record r;
	struct stat st;

	FOR_EACH_RECORD(r)
		if (r.kind == K_CHECK && r.n.b == C_TMPFS && own_count < sizeof own_devices_of / sizeof *own_devices_of &&
		    lstat(r.s[0], &st) == 0)
			own_devices_of[own_count++] = st.st_dev;
	FOR_EACH_RECORD(r)
		if (r.kind == K_SOCKET && granted_count < sizeof granted / sizeof *granted && lstat(r.s[0], &st) == 0) {
			granted[granted_count].dev = st.st_dev;
			granted[granted_count++].ino = st.st_ino;
		}
}

static void answer(uint64_t id, int error)
{
	struct answer a = {.id = id, .error = -error};

	/* ENOENT: the caller was interrupted or is gone. */
	(void)ioctl(listener_fd, SECCOMP_IOCTL_NOTIF_SEND_, &a);
}

/* Whether a socket file was bound in this network namespace, which only processes of the sandbox are in. Asked of the
 * kernel by device and inode (man 7 sock_diag): names can be relative, or have been moved onto something else. */
static int bound_inside(const struct stat *st)
{
	static char buffer[32768] __attribute__((aligned(8)));
	struct { struct netlink_header head; struct unix_request body; } request;
	uint32_t device = major(st->st_dev) << 20 | minor(st->st_dev);
	int s = socket(16 /* AF_NETLINK */, SOCK_RAW | SOCK_CLOEXEC, 4 /* NETLINK_SOCK_DIAG */), found = 0;
	const struct timeval patience = {2, 0};

	if (s < 0)
		return 0;
	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	memset(&request, 0, sizeof request);
	request.head.length = sizeof request;
	request.head.type = 20;            /* SOCK_DIAG_BY_FAMILY */
	request.head.flags = 0x301;        /* NLM_F_REQUEST | NLM_F_DUMP */
	request.body.family = AF_UNIX;
	request.body.states = ~0u;
	request.body.show = 2;             /* UDIAG_SHOW_VFS */
	if (send(s, &request, sizeof request, 0) != sizeof request)
		goto out;
	for (;;) {
		ssize_t n = recv(s, buffer, sizeof buffer, 0), at = 0;

		if (n <= 0)
			goto out;
		while (n - at >= (ssize_t)sizeof(struct netlink_header)) {
			struct netlink_header head;
			ssize_t end, attribute;

			memcpy(&head, buffer + at, sizeof head);
			if (head.type != 20 || head.length < sizeof head || head.length > n - at)
				goto out;      /* done, or an error */
			end = at + (ssize_t)head.length;
			for (attribute = at + (ssize_t)sizeof head + 16; end - attribute >= 12;) {
				uint16_t a[2];
				uint32_t v[2];

				memcpy(a, buffer + attribute, sizeof a);
				memcpy(v, buffer + attribute + 4, sizeof v);
				if (a[1] == 1 && v[0] == (uint32_t)st->st_ino && v[1] == device)      /* UNIX_DIAG_VFS */
					found = 1;
				if (a[0] < 4)
					break;
				attribute += (a[0] + 3) & ~3;
			}
			at += (ssize_t)((head.length + 3) & ~3u);
		}
	}
out:
	close(s);
	return found;
}

static int allowed_socket(const struct stat *st)
{
	struct stat own;

	for (size_t i = 0; i < granted_count; i++)
		if (granted[i].dev == st->st_dev && granted[i].ino == st->st_ino)
			return 1;
	if (plan->flags & F_NETNS)
		return bound_inside(st);
	/* In the host's network namespace everything is listed; only what lies in the sandbox's own tmpfs is its own. */
	for (size_t i = 0; i < own_count; i++)
		if (own_devices_of[i] == st->st_dev)
			return 1;
	return tmpfs_fd >= 0 && fstat(tmpfs_fd, &own) == 0 && own.st_dev == st->st_dev;
}

/* What means "the caller" in a path has to be the caller here too. */
static void translate(pid_t tid, const char *path, char *real, size_t room)
{
	if (!strncmp(path, "/proc/self/", 11))
		snprintf(real, room, "/proc/%d/%s", (int)tid, path + 11);
	else if (!strncmp(path, "/proc/thread-self/", 18))
		snprintf(real, room, "/proc/%d/%s", (int)tid, path + 18);
	else if (!strncmp(path, "/dev/fd/", 8))
		snprintf(real, room, "/proc/%d/fd/%s", (int)tid, path + 8);
	else
		snprintf(real, room, "%s", path);
}

/* Resolves a socket's path as its caller would, and makes an address of the very file that was found.
 * Returns a descriptor that has to stay open until the call is made, or -1 with errno. */
static int pin_address(pid_t tid, struct sockaddr_storage *address, socklen_t *length)
{
	struct sockaddr_un *name = (struct sockaddr_un *)address;
	char path[sizeof name->sun_path + 1], real[sizeof path + 64], cwd_path[64];
	size_t room = *length - offsetof(struct sockaddr_un, sun_path);
	int directory, fd, saved;
	struct stat st;

	if (room > sizeof name->sun_path)
		room = sizeof name->sun_path;
	memcpy(path, name->sun_path, room);
	path[room] = 0;
	snprintf(cwd_path, sizeof cwd_path, "/proc/%d/cwd", (int)tid);
	directory = open(cwd_path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (directory < 0)
		return -1;
	translate(tid, path, real, sizeof real);
	fd = openat(directory, real, O_PATH | O_CLOEXEC);
	saved = errno;
	close(directory);
	errno = saved;
	if (fd < 0)
		return -1;
	if (fstat(fd, &st) < 0 || (S_ISSOCK(st.st_mode) && !allowed_socket(&st))) {
		close(fd);
		errno = EACCES;
		return -1;
	}
	memset(address, 0, sizeof *address);
	name->sun_family = AF_UNIX;
	*length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
		(size_t)snprintf(name->sun_path, sizeof name->sun_path, "/proc/self/fd/%d", fd));
	return fd;
}

static pid_t group_of(pid_t tid)
{
	char path[64], text[1024], *line;

	snprintf(path, sizeof path, "/proc/%d/status", (int)tid);
	if (read_text(path, text, sizeof text) < 0)
		return -1;
	line = strstr(text, "\nTgid:");
	return line ? (pid_t)strtol(line + 6, NULL, 10) : -1;
}

/* One try, without blocking init. Returns 0, an error, or -1 for "later". */
static int try_connect(struct pending *p, int first)
{
	int error = 0, blocking = !(p->flags & O_NONBLOCK);
	socklen_t size = sizeof error;

	if (!first && p->at_file < 0) {
		struct pollfd done = {.fd = p->fd, .events = POLLOUT};

		if (poll(&done, 1, 0) <= 0) {
			if (p->deadline < 0 || now_ms() < p->deadline)
				return -1;
			error = EINPROGRESS;      /* what connect() says when SO_SNDTIMEO is over (man 7 socket) */
		} else if (getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
			error = errno;
	} else {
		if (blocking && first)
			fcntl(p->fd, F_SETFL, p->flags | O_NONBLOCK);
		if (connect(p->fd, (struct sockaddr *)&p->address, p->length) < 0)
			error = errno;
		if (blocking && (error == EINPROGRESS || (error == EAGAIN && p->at_file >= 0)) &&
		    (p->deadline < 0 || now_ms() < p->deadline))
			return -1;
	}
	if (blocking)
		fcntl(p->fd, F_SETFL, p->flags);
	return error;
}

static void finish_connect(struct pending *p, int error)
{
	answer(p->id, error);
	close(p->fd);
	if (p->at_file >= 0)
		close(p->at_file);
	p->fd = 0;
	pending_count--;
}

/* A socket acts in the network namespace that it was made in. One that was inherited would lead out of this one. */
static int of_this_network(int fd)
{
	static uint64_t own;
	uint64_t cookie = 0;
	socklen_t size = sizeof cookie;

	if (!own) {
		int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		socklen_t n = sizeof own;

		if (s < 0 || getsockopt(s, SOL_SOCKET, SO_NETNS_COOKIE_, &own, &n) < 0)
			own = 0;
		if (s >= 0)
			close(s);
	}
	return own && getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE_, &cookie, &size) == 0 && cookie == own;
}

/* The very thread's table of descriptors; threads may have tables of their own. Before 6.9 only a leader has a pidfd. */
static int open_caller(pid_t tid)
{
	int fd = (int)syscall(NR_pidfd_open, tid, PIDFD_THREAD_);
	pid_t group;

	if (fd >= 0)
		return fd;
	group = group_of(tid);
	if (group <= 0 || (group != tid && syscall(SYS_kcmp, tid, group, 2 /* KCMP_FILES */, 0, 0) != 0))
		return -1;
	return (int)syscall(NR_pidfd_open, group, 0);
}

#include "observe.h"

/* A call that the filter hands to us to be refused, so that the caller learns of it: each kind once. Never is the kernel told to
 * go on with one. */
static void refuse(const struct notification *n)
{
	static uint32_t told[32];      /* a bit for each number */
	const struct denied m = {M_DENIED, n->nr};
	uint32_t index = (uint32_t)n->nr / 32, bit = 1u << (uint32_t)n->nr % 32;

	/* Before the answer: once it has that, the command may end, and we are ended with it. */
	if (index < sizeof told / sizeof *told && !(told[index] & bit)) {
		if (send(launch_socket, &m, sizeof m, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof m)
			told[index] |= bit;
		else if (untold)
			*untold = 1;
	}
	answer(n->id, EPERM);
}

static void one_connect(void)
{
	static union { struct notification n; char room[512]; } buffer;
	const struct notification *n = &buffer.n;
	struct pending *p = pending;
	struct iovec here, there;
	int domain = 0, pidfd, error;
	socklen_t size = sizeof domain;
	struct timeval patience;

	memset(&buffer, 0, sizeof buffer);
	if (ioctl(listener_fd, SECCOMP_IOCTL_NOTIF_RECV_, &buffer) < 0)
		return;      /* interrupted, or the caller is gone */
	if (n->nr != SYS_connect) {
		if (!observe(n))
			refuse(n);
		return;
	}
	if (pending_count == PENDING) {
		answer(n->id, EAGAIN);
		return;
	}
	while (p->fd)
		p++;
	memset(p, 0, sizeof *p);
	p->id = n->id;
	p->at_file = -1;
	p->deadline = -1;
	p->length = (socklen_t)n->args[2];
	if (p->length > sizeof p->address) {
		answer(n->id, EINVAL);
		return;
	}
	pidfd = open_caller((pid_t)n->pid);
	if (pidfd < 0) {
		answer(n->id, ESRCH);
		return;
	}
	p->fd = (int)syscall(NR_pidfd_getfd, pidfd, (int)n->args[0], 0);
	error = errno;
	close(pidfd);
	if (p->fd < 0) {
		p->fd = 0;
		answer(n->id, error == EBADF ? EBADF : EACCES);
		return;
	}
	pending_count++;
	here = (struct iovec){&p->address, p->length};
	there = (struct iovec){(void *)(uintptr_t)n->args[1], p->length};
	if (getsockopt(p->fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) < 0) {
		finish_connect(p, ENOTSOCK);
		return;
	}
	if (!of_this_network(p->fd)) {
		finish_connect(p, EPERM);
		return;
	}
	if (p->length && process_vm_readv((pid_t)n->pid, &here, 1, &there, 1, 0) != (ssize_t)p->length) {
		finish_connect(p, EFAULT);
		return;
	}
	/* Only now is it certain that the memory and the descriptor were this caller's and not those of a later process. */
	if (ioctl(listener_fd, SECCOMP_IOCTL_NOTIF_ID_VALID_, &p->id) < 0) {
		finish_connect(p, EINTR);
		return;
	}
	p->flags = fcntl(p->fd, F_GETFL);
	size = sizeof patience;
	if (getsockopt(p->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, &size) == 0 && (patience.tv_sec || patience.tv_usec))
		p->deadline = now_ms() + (int64_t)patience.tv_sec * 1000 + patience.tv_usec / 1000;
	if (domain == AF_UNIX && p->address.ss_family == AF_UNIX && p->length > offsetof(struct sockaddr_un, sun_path)) {
		if (((struct sockaddr_un *)&p->address)->sun_path[0]) {
			p->at_file = pin_address((pid_t)n->pid, &p->address, &p->length);
			if (p->at_file < 0) {
				finish_connect(p, errno);
				return;
			}
		} else if (!(plan->flags & F_NETNS)) {
			/* Abstract names of the host: init is in no Landlock scope that would stop it. */
			finish_connect(p, EPERM);
			return;
		}
	}
	error = try_connect(p, 1);
	if (error >= 0)
		finish_connect(p, error);
}

static void pending_connects(void)
{
	for (size_t i = 0; i < PENDING && pending_count; i++) {
		struct pending *p = pending + i;
		int error;

		if (!p->fd)
			continue;
		if (ioctl(listener_fd, SECCOMP_IOCTL_NOTIF_ID_VALID_, &p->id) < 0) {
			fcntl(p->fd, F_SETFL, p->flags);
			finish_connect(p, EINTR);
		} else if ((error = try_connect(p, 0)) >= 0) {
			finish_connect(p, error);
		}
	}
}

static int keep_ptrace_only(void)
{
	struct cap_header h = {CAPABILITY_VERSION_3, 0};
	struct cap_data d[2] = {{1u << CAP_SYS_PTRACE_, 1u << CAP_SYS_PTRACE_, 0}, {0, 0, 0}};

	/* Under bubblewrap we may have no capability at all: then being the command's user has to do. */
	if (plan->flags & F_WRAPPED && !has_capability(CAP_SYS_PTRACE_))
		return limit_capabilities(0) < 0 ? -1 : prctl(PR_SET_DUMPABLE, 0);
	if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0 || switch_user() < 0 || syscall(SYS_capset, &h, d) < 0)
		return -1;
	return prctl(PR_SET_DUMPABLE, 0);
}

static void __attribute__((noreturn)) connector_loop(void)
{
	int mine[] = {listener_fd, launch_socket, tmpfs_fd < 0 ? listener_fd : tmpfs_fd};
	int64_t next_try = 0;

	only_keep(mine, 3);
	prctl(PR_SET_NAME, "sandbox-connect");
	if (be_as_usual() < 0)      /* how much it has to do is up to the command */
		_exit(125);
	find_granted();
	if (keep_ptrace_only() < 0)
		_exit(125);
	for (;;) {
		/* Files are to be looked at also where there are too many connections; those are refused then. */
		struct pollfd p = {.fd = pending_count < PENDING || plan->flags & F_OBSERVE ? listener_fd : -1, .events = POLLIN};

		if (poll(&p, 1, pending_count ? 5 : -1) < 0 && errno != EINTR)
			_exit(125);
		if (p.revents & POLLIN)
			one_connect();
		else if (p.revents)
			_exit(0);      /* nobody is left who could call */
		if (pending_count && now_ms() >= next_try) {
			pending_connects();
			next_try = now_ms() + 5;
		}
	}
}

static void start_connector(void)
{
	if (plan->flags & F_OBSERVE) {
		void *shared = mmap(NULL, sizeof *untold, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (shared == MAP_FAILED)
			leave(125);
		untold = shared;
	}
	connector_pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (connector_pid == 0)
		connector_loop();
	/* Without a holder of the listener every connect() fails (ENOSYS): the same if the fork has failed. */
	close(listener_fd);
	listener_fd = -1;
	if (connector_pid < 0) {
		connector_pid = 0;
		connector_ended = 1;
	}
}

/* Nobody is left inside. Whether the network namespace is as it was made, so that the next run cannot tell it from a new
 * one: no packet ever crossed an interface (or a port could be held by a connection in TIME_WAIT, or data be on its way),
 * and no socket is left, not even one in flight in a message that nobody will read. What else it holds (addresses, routes,
 * settings) only CAP_NET_ADMIN can change, which no command has. */
static int untouched(void)
{
	static const char none[] = "sockets: used 0\n";
	char text[2048], *line, *state = NULL;
	int devices = 0;

	if (read_text("/proc/self/net/sockstat", text, sizeof text) < 0 || strncmp(text, none, sizeof none - 1))
		return 0;
	if (read_text("/proc/self/net/dev", text, sizeof text) < 0 || strlen(text) == sizeof text - 1)
		return 0;
	for (line = strtok_r(text, "\n", &state); line; line = strtok_r(NULL, "\n", &state)) {
		char *counters = strchr(line, ':');
		if (!counters)
			continue;      /* the heading */
		devices++;
		if (counters[strspn(counters, ": 0")])
			return 0;
	}
	return devices > 0;
}

/* Only if the caller keeps up: the record of the end must find room on the socket. */
static void tell_progress(int64_t wall_ms)
{
	struct progress m = {
		.type = M_PROGRESS, .processes = used.processes, .threads = used.threads, .cpu_us = used.cpu_us, .memory = used.memory,
		.written = used.written, .wall_ms = (uint64_t)wall_ms,
	};
	int unread = 0;

	if (ioctl(launch_socket, SIOCOUTQ_, &unread) == 0 && unread < 16384)
		(void)send(launch_socket, &m, sizeof m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void __attribute__((noreturn)) init_loop(void)
{
	static struct ended e;
	int32_t request[2];
	sigset_t chld;
	int status = 0, state = 0, command_done = 0, socket_open = 1;
	const int64_t begin = now_ms();
	int64_t deadline = -1, wall_end = limits[L_WALL] ? begin + (int64_t)limits[L_WALL] : INT64_MAX;
	int64_t next_event = plan->event_ms ? begin + (int64_t)plan->event_ms : INT64_MAX;
	enum limit crossed = L_NONE;
	int signals;

	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	signals = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
	if (signals < 0)
		leave(125);
	{
		int mine[] = {signals, pair[1], caller_fd, launch_socket, tmpfs_fd < 0 ? signals : tmpfs_fd,
			listener_fd < 0 ? signals : listener_fd, io_fd < 0 ? signals : io_fd, signals, signals, signals, signals, signals, signals};
		for (int i = 0; i < G_COUNT; i++)
			if (group_files[i] >= 0)
				mine[7 + i] = group_files[i];
		only_keep(mine, 13);
	}
	e.type = M_ENDED;
	shared_at_first = host_shared();
	plan_next_look(now_us());
	for (;;) {
		struct pollfd p[7] = {
			{.fd = signals, .events = POLLIN}, {.fd = caller_fd, .events = POLLIN}, {.fd = pair[1], .events = POLLIN},
			{.fd = socket_open ? launch_socket : -1, .events = POLLIN},
			{.fd = listener_fd, .events = POLLIN},
			{.fd = command_done || !limits[L_MEMORY] ? -1 : group_files[G_EVENTS], .events = POLLPRI},
			{.fd = command_done || !limits[L_THREADS] ? -1 : group_files[G_PIDS], .events = POLLPRI},
		};
		int64_t wait, began;

		state = reap(&status);
		if (state & 1) {
			command_done = 1;
			command_pid = 0;
			if (connector_ended)
				e.flags |= E_UNSEEN;
			/* Ours, and none of what the command left behind. Who observes is needed until nobody is left who
			 * could call, and then ends by itself. */
			if (connector_pid && !(plan->flags & F_OBSERVE))
				kill(connector_pid, SIGKILL);
			deadline = now_ms() + plan->grace_ms;
			/* It may be the one that the kernel has ended, or it leaves no time to be told of another. */
			crossed = crossed_in_group();
			/* Whoever has ended, too, and waits for us only, is none of them. */
			for (int i = 0; i < 64 && state & 4; i++)
				state = reap(&status);
			if (crossed == L_NONE && !(state & 2) && leaves_a_crowd())
				crossed = L_PROCESSES;
			if (crossed != L_NONE)
				break;
		}
		if (command_done && (state & 2 || (deadline - now_ms()) <= 0))
			break;
		began = now_us();
		if (began / 1000 >= next_look || began / 1000 >= next_event) {
			crossed = look();
			if (is_blind())
				leave(125);      /* what cannot be looked at is not let go on as if it were within its limits */
			plan_next_look(began);
		}
		if (began / 1000 >= wall_end)
			crossed = L_WALL;
		if (command_done)
			crossed = L_NONE;      /* what it left behind is ended anyway */
		if (crossed != L_NONE)
			break;
		if (began / 1000 >= next_event) {
			tell_progress(now_ms() - begin);
			next_event += (int64_t)plan->event_ms;
		}
		wait = next_look;
		if (next_event < wait)
			wait = next_event;
		if (command_done ? deadline < wait : wall_end < wait)
			wait = command_done ? deadline : wall_end;
		wait -= now_ms();
		if (wait < 0)
			wait = 0;
		if (state & 4)
			wait = 0;      /* more to reap, but first whatever else there is */
		if (command_done && !(plan->flags & F_OBSERVE))
			p[4].fd = -1;      /* what is left has a moment to end; it gets no connector any more, which would be left too */
		if (poll(p, 7, (int)wait) < 0 && errno != EINTR)
			leave(125);
		if (p[5].revents || p[6].revents) {
			crossed = crossed_in_group();
			if (crossed != L_NONE)
				break;
		}
		if (p[4].revents & POLLIN)
			start_connector();
		else if (p[4].revents)
			listener_fd = -1;      /* nobody is left who could call */
		if (p[0].revents & POLLIN) {
			struct signalfd_siginfo si;
			while (read(signals, &si, sizeof si) > 0)
				;
		}
		if (p[1].revents)
			leave(125);      /* the calling process is gone: the kernel ends everything here with us */
		if (p[2].revents) {
			ssize_t n = recv(pair[1], request, sizeof request, MSG_DONTWAIT);
			if (n == sizeof request)
				forward(request);
			else if (n == 0)
				leave(125);      /* the monitor died */
		}
		if (p[3].revents) {
			char order[8];
			ssize_t n = recv(launch_socket, order, sizeof order, MSG_DONTWAIT);
			/* Told, and not killed: a command that is just ending keeps its own status, as it would without us; and a
			 * caller that has become another user since, and may not signal us, can still do this. */
			if (n == 4 && !memcmp(order, "kill", 4))
				break;
			/* The caller may drop its end and let the command go on, as Popen allows. */
			if (n <= 0)
				socket_open = 0;
		}
	}
	if (!(state & 2)) {
		pid_t pid;
		int st;

		if (connector_pid && plan->flags & F_OBSERVE) {
			kill(connector_pid, SIGKILL);
			while (waitpid(connector_pid, NULL, 0) < 0 && errno == EINTR)
				;
			connector_pid = 0;
		}

		if (command_done)
			e.left_behind = (plan->flags & F_NO_VIEW ? name_tree : name_survivors)(e.names, sizeof e.names);
		if (plan->flags & F_NO_VIEW) {
			status = end_children(command_pid, status);
		} else {
			kill(-1, SIGKILL);
			while ((pid = waitpid(-1, &st, 0)) > 0 || errno == EINTR)
				if (pid > 0 && pid == command_pid)
					status = st;
		}
	}
	{
		struct rusage u;
		if (getrusage(RUSAGE_CHILDREN, &u) == 0) {
			e.user_us = (uint64_t)u.ru_utime.tv_sec * 1000000 + (uint64_t)u.ru_utime.tv_usec + lost.ticks * TICK_US;
			e.system_us = (uint64_t)u.ru_stime.tv_sec * 1000000 + (uint64_t)u.ru_stime.tv_usec;
			e.max_rss_kb = (uint64_t)u.ru_maxrss;
		}
		(void)group_time(&e.user_us, &e.system_us);      /* those of whom nobody has waited for, too */
	}
	if (group_says(G_STAT))
		e.flags |= E_GROUP;
	if (connector_ended && (!command_done || plan->flags & F_OBSERVE))
		e.flags |= E_UNSEEN;
	if (untold && *untold)
		e.flags |= E_UNTOLD;
	e.limit = crossed;
	e.limit_value = crossed == L_WALL ? (uint64_t)(now_ms() - begin) : value_of(crossed);
	e.memory = peak.memory;
	e.processes = peak.processes;
	e.threads = peak.threads;
	e.written = written_by_ended() + lost.written;
	if (plan->flags & F_NETNS && !(plan->flags & F_WRAPPED) && untouched())
		e.flags |= E_UNTOUCHED;
	e.status = status;
	(void)send(launch_socket, &e, sizeof e, MSG_NOSIGNAL | MSG_DONTWAIT);
	(void)send(pair[1], &status, sizeof status, MSG_NOSIGNAL);
	if (plan->flags & F_NO_VIEW)
		tidy();
	_exit(0);
}

static const struct step init_steps[] = {
	{"session", begin_session}, {"cgroup", own_groups}, {"identity", own_identity}, {"loopback", loopback}, {"open_tree", open_sources},
	{"readonly", readonly_world}, {"view", build_view}, {"chdir", enter_cwd}, {NULL, NULL},
};
static int tell_begun(void)
{
	return send(pair[1], "", 1, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

static const struct step wrapped_steps[] = {
	{"check_namespaces", check_namespaces}, {"session", begin_session}, {"identity", own_identity},
	{"private", private_mounts}, {"devices", readonly_nodes}, {"check_mounts", check_mounts}, {"check_view", check_places}, {"begun", tell_begun},
	{"chdir", enter_cwd}, {NULL, NULL},
};
static const struct step flat_steps[] = {
	{"session", begin_session}, {"subreaper", become_subreaper}, {"identity", own_identity}, {NULL, NULL},
};

/* Without a pid namespace the command must not be in init's session: it could put itself into init's process group, and a stop
 * that is meant for it would stop init. So somebody in between makes a session, starts the command in it as init's child
 * (CLONE_PARENT), and is gone: the command leads neither its session nor its group, as in a pid namespace. */
static pid_t started;
static volatile int on_its_way;            /* until the kernel clears it: at the exec of the command, or its end */

static int session_main(void *stack)
{
	on_its_way = 1;
	/* Not CLONE_VFORK: who waits for the exec is init, and not this process, whose end would come on top. From here on there are
	 * two who run in one memory, so this one does no more than end. */
	started = setsid() < 0 ? -1 :
		clone(command_main, stack, CLONE_VM | CLONE_FILES | CLONE_PARENT | CLONE_CHILD_CLEARTID | SIGCHLD, NULL,
			NULL, NULL, &on_its_way);
	if (started < 0)
		failure.error = errno;
	_exit(0);
}

static pid_t start_in_session(char *stack)
{
	static char between[16384] __attribute__((aligned(64)));
	pid_t leader = clone(session_main, between + sizeof between, CLONE_VM | CLONE_VFORK | CLONE_FILES | SIGCHLD, stack);

	if (leader < 0)
		return -1;
	while (waitpid(leader, NULL, 0) < 0 && errno == EINTR)
		;
	if (started < 0) {
		errno = failure.error;
		return -1;
	}
	/* As CLONE_VFORK would wait. The only failure is EAGAIN: it is cleared, and the command, whose errno is ours, has gone. */
	while (on_its_way)
		syscall(SYS_futex, &on_its_way, 0 /* FUTEX_WAIT */, 1, NULL, NULL, 0);
	return started;
}

static void __attribute__((noreturn)) init_main(void)
{
	static char stack[256 * 1024] __attribute__((aligned(64)));

	const struct step *steps = plan->flags & F_WRAPPED ? wrapped_steps : plan->flags & F_NO_VIEW ? flat_steps : init_steps;

	if (pair[0] >= 0)
		close(pair[0]);
	if (place_fd >= 0)
		close(place_fd);
	place_fd = -1;      /* the group is the monitor's to remove */
	/* argv is the command's, and it has a copy: "pgrep -f" inside would find process 1 for whatever it looks for. */
	memset(arguments, 0, (size_t)(arguments_end - arguments));
	strncpy(arguments, "sandbox-init", (size_t)(arguments_end - arguments) - 1);
	for (; steps->name; steps++) {
		step_name = steps->name;
		step_path = NULL;
		if (steps->run() < 0) {
			report_failure(M_FAILED, step_name, errno, step_path);
			leave(125);
		}
		mark(steps->name);
	}
	begin_group();
	step_name = "vfork";
	step_path = NULL;
	/* vfork: init sleeps until the command has execed or failed, and reads the failure from their shared memory. */
	command_pid = plan->flags & F_NO_VIEW ? start_in_session(stack + sizeof stack) :
		clone(command_main, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_FILES | SIGCHLD, NULL);
	if (command_pid < 0) {
		report_failure(M_FAILED, step_name, errno, NULL);
		leave(125);
	}
	if (!failure.error && !failure.reached_exec) {
		/* Killed on its way, by a filter or a limit that the caller's process already had. */
		failure.error = EINTR;
		failure.step = step_name;
	}
	if (failure.error) {
		report_failure(failure.is_exec ? M_EXEC_FAILED : M_FAILED, failure.step, failure.error, failure.path);
		leave(125);
	}
	step_name = "running";
	if (say_running() < 0) {
		report_failure(M_FAILED, step_name, errno, NULL);
		leave(125);
	}
	if (chdir("/") < 0)
		leave(125);
	init_loop();
}

/* ---- monitor ------------------------------------------------------------------------------------------------------ */

static void __attribute__((noreturn)) mirror(int status)
{
	if (WIFSIGNALED(status)) {
		struct sigaction fallback;
		sigset_t one;

		memset(&fallback, 0, sizeof fallback);
		fallback.sa_handler = SIG_DFL;
		sigaction(WTERMSIG(status), &fallback, NULL);
		sigemptyset(&one);
		sigaddset(&one, WTERMSIG(status));
		kill(getpid(), WTERMSIG(status));
		sigprocmask(SIG_UNBLOCK, &one, NULL);
		_exit(128 + WTERMSIG(status));
	}
	_exit(WEXITSTATUS(status));
}

static void stop_as_asked(int signal_number)
{
	sigset_t one;

	sigemptyset(&one);
	sigaddset(&one, signal_number);
	kill(getpid(), signal_number);
	sigprocmask(SIG_UNBLOCK, &one, NULL);
	sigprocmask(SIG_BLOCK, &one, NULL);
}

/* ---- monitor: by way of bubblewrap ----------------------------------------------------------------------------------------
 *
 * bubblewrap starts this program again, as process 1 of what it has made. It gets an empty environment and none of the command's
 * streams: its messages must not be taken for the command's output, and it must not load what LD_PRELOAD names. Everything else,
 * the environment too, goes past it in a memfd, and never through its arguments.
 */

struct carried {
	int32_t plan, socket, pair, caller, group, stream[3], sigchld_ignored, is_first;
	struct sched_attr_ usual;
	uint32_t umask, argc, envc;
	uint64_t outside[NAMESPACES];
	sigset_t mask;
	char cwd[PATH_MAX];
};

static int wrapper_says = -1;              /* monitor: a memfd with bubblewrap's messages */
static int wrapper_ended, wrapper_status;  /* monitor: it was reaped before anybody waited for its end */

static void tell_wrapper_failed(const char *step, int status)
{
	static char text[1024];
	ssize_t n = wrapper_says < 0 ? 0 : pread(wrapper_says, text, sizeof text - 1, 0);

	if (n <= 0)
		n = snprintf(text, sizeof text, WIFSIGNALED(status) ? "it was killed by signal %d" : "it ended with status %d",
			WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	text[n] = 0;
	/* Not listened to if init has said something before. */
	report_failure(M_FAILED, step, 0, text);
}

static int put(int fd, const void *bytes, size_t size)
{
	while (size) {
		ssize_t n = write(fd, bytes, size);
		if (n <= 0)
			return -1;
		bytes = (const char *)bytes + n;
		size -= (size_t)n;
	}
	return 0;
}

static int memfd(const char *name)
{
	return (int)syscall(SYS_memfd_create, name, 1u /* MFD_CLOEXEC */);
}

static int put_strings(int fd, char **list, uint32_t *count)
{
	for (*count = 0; list[*count]; ++*count)
		if (put(fd, list[*count], strlen(list[*count]) + 1) < 0)
			return -1;
	return 0;
}

static int inherit(int fd)
{
	return fcntl(fd, F_SETFD, 0);
}

/* Moves a descriptor to the number that the options name, which nothing may have. */
static int give_number(int fd, int number)
{
	if (fcntl(number, F_GETFD) >= 0) {
		errno = EBUSY;
		return -1;
	}
	if (dup2(fd, number) < 0) {
		errno = EMFILE;      /* the number is above the limit, of which dup2 says EBADF */
		return -1;
	}
	return close(fd);
}

/* In a forked child of the monitor; returns only if something failed. */
static void wrap(void)
{
	static struct carried c;
	static char numbers[2][32], inside[64];
	struct record r;
	char *none[] = {NULL};
	int carry, null, options = -1;
	const char *program = NULL;

	step_name = "wrapper";
	step_path = NULL;
	if (place_fd >= 0)
		close(place_fd);
	place_fd = -1;
	/* Not killed with us (PR_SET_PDEATHSIG): its own child would wait for it for ever, if it died before it has written the maps.
	 * Left alone it starts process 1, which finds nobody at the other end of the pair and ends. Nor is it stopped with us, when
	 * somebody stops our group: it could not be ended then. */
	if (setpgid(0, 0) < 0)
		give_up();
	c.plan = plan_fd;
	c.socket = launch_socket;
	c.pair = pair[1];
	c.caller = caller_fd;
	c.group = group_fd;
	c.sigchld_ignored = sigchld_ignored;
	c.is_first = is_first;
	c.usual = usual;
	c.umask = original_umask;
	c.mask = original_mask;
	strcpy(c.cwd, cwd);
	for (size_t i = 0; i < NAMESPACES; i++)
		c.outside[i] = namespace_id(namespace_names[i]);
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null < 0)
		give_up();
	for (int fd = 0; fd < 3; fd++) {
		/* Marked: it only holds the place of a stream that was closed. */
		int closed = fcntl(fd, F_GETFD) & FD_CLOEXEC;
		c.stream[fd] = closed ? -1 : fcntl(fd, F_DUPFD, 3);
		if ((!closed && c.stream[fd] < 0) || dup2(fd < 2 ? null : wrapper_says, fd) < 0)
			give_up();
	}
	carry = memfd("carry");
	if (carry < 0 || put(carry, &c, sizeof c) < 0 || put_strings(carry, command_argv, &c.argc) < 0 ||
	    put_strings(carry, environ, &c.envc) < 0 || pwrite(carry, &c, sizeof c, 0) != sizeof c)
		give_up();
	FOR_EACH_RECORD(r) {
		if (r.kind == K_WRAPPER) {
			program = r.s[0];
			snprintf(numbers[0], sizeof numbers[0], "/proc/self/fd/%u", r.n.a);
			options = memfd("options");
			if (options < 0 || put(options, r.raw, r.raw_length) < 0 || inherit((int)r.n.a) < 0)
				give_up();
			snprintf(numbers[1], sizeof numbers[1], "%d", options);
		} else if (r.kind == K_OPTION) {
			/* A socket may be gone again, and bubblewrap would end for that. */
			struct stat st;
			if (lstat(r.s[0], &st) == 0 && put(options, r.raw, r.raw_length) < 0)
				give_up();
		} else if (r.kind == K_PLACE) {
			/* What is bound writable is handed over open: led elsewhere by a link, bubblewrap would make the mount points
			 * of what is to be covered in it there, on the host. */
			struct stat st;
			int fd = open_target(r.s[0]);

			step_path = r.s[0];
			step_name = "pin";
			if (fd < 0 || fstat(fd, &st) < 0)
				give_up();
			if ((uint64_t)st.st_dev != r.n.c || (uint64_t)st.st_ino != r.n.d) {
				errno = ESTALE;
				give_up();
			}
			if (give_number(fd, (int)r.n.a) < 0)
				give_up();
			step_path = NULL;
			step_name = "wrapper";
		} else if (r.kind == K_DATA) {
			int fd = memfd("data");
			if (fd < 0 || put(fd, r.raw, r.raw_length) < 0 || (r.n.d && ftruncate(fd, (off_t)r.n.d) < 0) ||
			    lseek(fd, 0, SEEK_SET) < 0 || give_number(fd, (int)r.n.a) < 0)
				give_up();
		}
	}
	if (lseek(options, 0, SEEK_SET) < 0 || inherit(options) < 0 || inherit(plan_fd) < 0 || inherit(launch_socket) < 0 ||
	    inherit(pair[1]) < 0 || inherit(caller_fd) < 0 || inherit(carry) < 0 || (group_fd >= 0 && inherit(group_fd) < 0))
		give_up();
	snprintf(inside, sizeof inside, "sandboxed-subprocess-inside %d", carry);
	{
		char *arguments_of[] = {(char *)(uintptr_t)"bwrap", (char *)(uintptr_t)"--args", numbers[1], (char *)(uintptr_t)"--", numbers[0],
			inside, NULL};
		step_path = program;
		execve(program, arguments_of, none);
	}
	give_up();
}

/* The other side of wrap(): process 1 of what bubblewrap has made. */
static void __attribute__((noreturn)) inside_main(int carry)
{
	const struct carried *c;
	struct stat st;
	char *at, *end;
	char **list;

	if (fstat(carry, &st) < 0 || st.st_size < (off_t)sizeof *c)
		bad_plan("nothing was carried");
	c = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, carry, 0);
	if (c == MAP_FAILED)
		bad_plan("what was carried cannot be mapped");
	close(carry);
	launch_socket = c->socket;
	pair[1] = c->pair;
	caller_fd = c->caller;
	group_fd = c->group;
	sigchld_ignored = c->sigchld_ignored;
	is_first = c->is_first;
	usual = c->usual;
	original_umask = c->umask;
	original_mask = c->mask;
	memcpy(cwd, c->cwd, sizeof cwd);
	memcpy(outside, c->outside, sizeof outside);
	umask(0);
	sigfillset(&everything);
	sigprocmask(SIG_SETMASK, &everything, NULL);
	/* Any of these may have a number that the command was to have, and that was closed before we began. */
	{
		const int own[] = {c->socket, c->pair, c->caller, c->plan, c->group < 0 ? c->plan : c->group};
		for (size_t i = 0; i < sizeof own / sizeof *own; i++)
			if (fcntl(own[i], F_SETFD, FD_CLOEXEC) < 0)
				give_up();
	}
	for (int fd = 0; fd < 3; fd++)
		if (c->stream[fd] < 0 ? fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 :
		    dup2(c->stream[fd], fd) < 0 || fcntl(c->stream[fd], F_SETFD, FD_CLOEXEC) < 0)
			give_up();
	at = (char *)(uintptr_t)(c + 1);
	end = (char *)(uintptr_t)c + st.st_size;
	command_argv = list = table((size_t)c->argc + c->envc + 2, sizeof *list);
	for (uint32_t i = 0; i < c->argc + c->envc; i++) {
		if (i == c->argc) {
			list++;
			environ = list;
		}
		*list++ = at;
		at = memchr(at, 0, (size_t)(end - at));
		if (!at++)
			bad_plan("what was carried is cut off");
	}
	if (!c->envc)
		environ = list;
	/* Whatever else came past bubblewrap is closed by close_on_exec() and only_keep(). */
	parse(c->plan);
	if (!(plan->flags & F_WRAPPED))
		bad_plan("not a plan for bubblewrap");
	close(plan_fd);
	init_main();
}

/* For an init that was the largest process of a tree which had used up its memory. */
static void tell_ran_out(void)
{
	static struct ended e;
	char text[256];

	e.type = M_ENDED;
	e.status = SIGKILL;
	e.flags = E_GROUP;
	e.limit = L_MEMORY;
	e.memory = e.limit_value = group_memory_max;
	if (read_in_group("cpu.stat", text, sizeof text) == 0) {
		e.user_us = number_in(text, "user_usec");
		e.system_us = number_in(text, "system_usec");
	}
	(void)send(launch_socket, &e, sizeof e, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void __attribute__((noreturn)) monitor_loop(pid_t init)
{
	/* 1, not 0: with 0 a kernel that pipes cores to a handler still calls it (fs/coredump.c). */
	const struct rlimit no_core = {1, 1};

	{
		int mine[] = {pair[0], plan->flags & F_WRAPPED || group_fd >= 0 ? launch_socket : pair[0], wrapper_says < 0 ? pair[0] : wrapper_says,
			group_fd < 0 ? pair[0] : group_fd, place_fd < 0 ? pair[0] : place_fd};
		only_keep(mine, 5);
	}
	setrlimit(RLIMIT_CORE, &no_core);
	if (chdir("/") < 0)
		_exit(125);
	if (wrapper_ended)
		kill(getpid(), SIGCHLD);      /* blocked, so it is there to be taken; should its own have been taken already */
	for (;;) {
		siginfo_t info;
		int32_t request[2];
		int signal_number = sigwaitinfo(&everything, &info), status, raw = 0;

		if (signal_number < 0)
			continue;
		if (signal_number == SIGCHLD) {
			/* Only a reaped init proves that its pid namespace is empty (man 7 pid_namespaces); bubblewrap ends when it
			 * has reaped ours. Not there at all (ECHILD) is no reason to wait for it. */
			if (wrapper_ended)
				raw = wrapper_status;
			else if (waitpid(init, &raw, WNOHANG) == 0)
				continue;
			/* Twice: init may have ended with a forwarded signal unread, and the first call then says no more than that
			 * (ECONNRESET, net/unix/af_unix.c). */
			for (int i = 0; i < 2; i++)
				if (recv(pair[0], &status, sizeof status, MSG_DONTWAIT) == sizeof status) {
					remove_group();
					mirror(status);
				}
			if (group_ran_out())
				tell_ran_out();
			/* What it has left is ours now: a whole tree where there was no pid namespace, process 1 of one where
			 * bubblewrap was killed. */
			if (plan->flags & (F_WRAPPED | F_NO_VIEW))
				end_children(0, 0);
			if (plan->flags & F_NO_VIEW)
				tidy();
			if (plan->flags & F_WRAPPED) {
				tell_wrapper_failed("running", raw);
				/* It says of a killed process 1 what shells say; of the command's own 137 init has told us. */
				if (WIFEXITED(raw) && WEXITSTATUS(raw) > 128)
					raw = WEXITSTATUS(raw) - 128;
			}
			remove_group();
			/* Killed from outside, or the launch failed and has been reported. Never a success that nobody reported. */
			mirror(raw ? raw : 125 << 8);
		}
		request[0] = signal_number;
		/* From the terminal (SI_KERNEL) it was meant for a whole foreground group; from kill(2) for one process. But
		 * where we were made the leader of a group (by a keyword, or in preexec_fn), that was asked for so that killpg()
		 * ends a family, and the two cannot be told apart. */
		request[1] = info.si_code == SI_KERNEL || getpgrp() == getpid();
		if (signal_number == SIGTSTP || signal_number == SIGTTIN || signal_number == SIGTTOU) {
			/* Init's group is orphaned, where the kernel discards terminal stops (POSIX 2.4.3). */
			request[0] = SIGSTOP;
			request[1] = 1;
		} else if (signal_number == SIGCONT) {
			request[1] = 1;
			if (plan->flags & F_WRAPPED)
				kill(init, SIGCONT);
		}
		(void)send(pair[0], request, sizeof request, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (request[0] == SIGSTOP) {
			/* By the real signal and its default action: where no shell could ever continue us (an orphaned
			 * group), the kernel drops it, and stopping would be for ever. Either way, when we get past
			 * this line the command goes on too. */
			stop_as_asked(signal_number);
			request[0] = SIGCONT;
			(void)send(pair[0], request, sizeof request, MSG_NOSIGNAL | MSG_DONTWAIT);
		}
	}
}

/* Every id that exists here, mapped to itself: ownership looks the same inside, and user= can switch to any of them. */
static int identity_map(const char *path, char *out, size_t room)
{
	static char text[4096];
	size_t used = 0;
	char *line, *state = NULL;

	if (read_text(path, text, sizeof text) < 0)
		return -1;
	for (line = strtok_r(text, "\n", &state); line; line = strtok_r(NULL, "\n", &state)) {
		unsigned long first, outside, count;
		int wrote;

		if (sscanf(line, "%lu %lu %lu", &first, &outside, &count) != 3) {
			errno = EINVAL;
			return -1;
		}
		wrote = snprintf(out + used, room - used, "%lu %lu %lu\n", first, first, count);
		if (wrote < 0 || (size_t)wrote >= room - used) {
			errno = E2BIG;
			return -1;
		}
		used += (size_t)wrote;
	}
	return 0;
}

/* All ids at once; in a container that has only some (EPERM), those. */
static int write_map(pid_t init, const char *name, char *map, size_t room)
{
	static char path[64], own[64];

	step_path = path;
	snprintf(path, sizeof path, "/proc/%d/%s", (int)init, name);
	if (write_file(path, map) == 0)
		return 0;
	if (errno != EPERM)
		return -1;
	snprintf(own, sizeof own, "/proc/self/%s", name);
	return identity_map(own, map, room) < 0 ? -1 : write_file(path, map);
}

static int write_maps(pid_t init)
{
	if (write_map(init, "uid_map", uid_map, sizeof uid_map) < 0 || write_map(init, "gid_map", gid_map, sizeof gid_map) < 0)
		return -1;
	return send(pair[0], "", 1, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

/* The user and the network namespace of an earlier run that has left them as they were made: making them is most of the
 * price of a sandbox, and the kernel takes them apart one at a time. Nobody else is in them.
 *
 * Where the user namespace cannot be entered (the caller has changed its own namespaces, say), new ones are made. */
static int join_namespaces(void)
{
	int owner;

	if (plan->kept < 0)
		return 0;
	owner = ioctl(plan->kept, NS_GET_USERNS_);
	if (owner < 0)
		return 0;
	joined = setns(owner, CLONE_NEWUSER) == 0;
	close(owner);
	return joined ? setns(plan->kept, CLONE_NEWNET) : 0;
}

/* What the monitor got by entering a user namespace: every capability in it, of which it needs none, and a /proc entry that
 * belongs to root. */
static int stay_ordinary(void)
{
	if (limit_capabilities(0) < 0)
		return -1;
	return prctl(PR_SET_DUMPABLE, 1);
}

/* Returns once process 1 inside has begun, or ends this process. What bubblewrap was to cover may be gone in the moment in which
 * it does so; then it is started again. */
static pid_t start_wrapper(void)
{
	struct record r;
	int optional = 0, status = 0, ended;

	FOR_EACH_RECORD(r)
		optional |= r.kind == K_OPTION;
	for (int attempt = 0;; attempt++) {
		char begun;
		ssize_t n;
		pid_t wrapper = clone_into_group(0, 0);

		if (wrapper < 0)
			give_up();
		if (wrapper == 0) {
			close(pair[0]);
			wrap();
		}
		close(pair[1]);
		/* Its end of file alone would not do: killed before it has written the maps, bubblewrap leaves a child that waits for
		 * them for ever, with our pair open. */
		for (ended = 0;;) {
			struct pollfd word = {.fd = pair[0], .events = POLLIN};

			n = poll(&word, 1, 20) > 0 ? recv(pair[0], &begun, 1, MSG_DONTWAIT) : -1;
			/* It may have begun and be over already: killed, or a short command on a busy machine. Then its number
			 * is no child's of ours any more, and whoever waited for that would wait for ever. */
			if (n == 1) {
				wrapper_ended = ended;
				wrapper_status = status;
				return wrapper;
			}
			if (n == 0 || ended)
				break;
			ended = waitpid(wrapper, &status, WNOHANG) == wrapper;
		}
		if (!ended) {
			/* Nobody is left who could begin. */
			kill(wrapper, SIGCONT);
			waitpid(wrapper, &status, 0);
		}
		end_children(0, 0);
		/* 125: init, or the child that was to become bubblewrap, has said what failed, and the caller goes by that. */
		if (attempt == 5 || !optional || (WIFEXITED(status) && WEXITSTATUS(status) == 125) ||
		    (lseek(wrapper_says, 0, SEEK_END) <= 0 && !(WIFEXITED(status) && WEXITSTATUS(status) == AGAIN)))
			break;
		if (ftruncate(wrapper_says, 0) < 0 || lseek(wrapper_says, 0, SEEK_SET) < 0)
			give_up();
		close(pair[0]);
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
			give_up();
	}
	tell_wrapper_failed("bubblewrap", status);
	remove_group();
	_exit(125);
}

/* Where a limit of processes is to hold, init has to be there in time, and not behind a thousand of them in a queue: root's goes
 * before all others, and an ordinary user's asks for a tenth of a millisecond at a time, which is granted sooner (a hint that
 * kernels before 6.12 ignore). It inherits that from the monitor, which goes back at once; so does the command, before its exec. */
static void be_first(void)
{
	struct sched_attr_ first = {.size = sizeof first, .policy = SCHED_FIFO_, .priority = 1};

	usual.size = sizeof usual;
	if (!limits[L_PROCESSES] || syscall(SYS_sched_getattr, 0, &usual, sizeof usual, 0) < 0 || usual.policy != SCHED_OTHER_)
		return;
	usual.runtime = 0;      /* the default */
	is_first = syscall(SYS_sched_setattr, 0, &first, 0) == 0;
	if (!is_first) {
		first = usual;
		first.runtime = 100000;
		is_first = syscall(SYS_sched_setattr, 0, &first, 0) == 0;
	}
}

static pid_t start_init(void)
{
	unsigned long flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS;
	pid_t init;

	if (plan->flags & (F_WRAPPED | F_NO_VIEW)) {
		/* Should init be killed, or bubblewrap, what it leaves becomes ours to end. */
		step_name = "subreaper";
		if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
			give_up();
		flags = 0;
	} else if (!joined) {
		flags |= CLONE_NEWUSER | (plan->flags & F_NETNS ? CLONE_NEWNET : 0);
	}
	if (plan->flags & F_WRAPPED) {
		step_name = "wrapper";
		wrapper_says = memfd("bubblewrap");
		if (wrapper_says < 0)
			give_up();
		init = start_wrapper();
		if (group_fd >= 0 && hold_group() < 0) {
			/* init holds the limits, as without a group; that this one does not must not be said of it. */
			step_name = "cgroup";
			report_failure(M_FAILED, step_name, errno, NULL);
			kill(init, SIGKILL);
			waitpid(init, NULL, 0);
			end_children(0, 0);
			remove_group();
			_exit(125);
		}
		return init;
	}
	step_name = "clone";
	mark("monitor");
	init = clone_into_group(flags, plan->flags & F_NO_VIEW ? 0 : CLONE_NEWCGROUP);
	if (init < 0)
		give_up();
	if (init == 0) {
		mark("clone");
		init_main();
	}
	close(pair[1]);
	return init;
}

/* Closed in the caller means closed in the command: hold their place until the exec, before anything else is opened. */
static void hold_streams(void)
{
	for (int fd; (fd = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0;)
		if (fd > 2) {
			close(fd);
			break;
		}
}

static void monitor_main(void)
{
	struct sigaction before, fallback;
	pid_t init;

	step_name = "prepare";
	fcntl(launch_socket, F_SETFD, FD_CLOEXEC);
	prctl(PR_SET_NAME, "sandbox-monitor");
	sigfillset(&everything);
	if (sigprocmask(SIG_BLOCK, &everything, &original_mask) < 0)
		give_up();
	/* With SIGCHLD ignored children vanish unreaped and waitpid() has nothing to say (man 2 waitpid). */
	memset(&fallback, 0, sizeof fallback);
	fallback.sa_handler = SIG_DFL;
	if (sigaction(SIGCHLD, &fallback, &before) < 0)
		give_up();
	sigchld_ignored = before.sa_handler == SIG_IGN;
	original_umask = umask(0);
	step_name = "no_new_privs";
	if (prctl(PR_SET_NO_NEW_PRIVS_, 1, 0, 0, 0) < 0)
		give_up();
	step_name = "caller";
	caller_fd = (int)syscall(NR_pidfd_open, plan->caller, 0);
	/* In this order: a pid that still is our parent's cannot have been given to someone else before the open. */
	if ((pid_t)plan->caller != getppid()) {
		tidy();
		_exit(125);
	}
	if (caller_fd < 0)
		give_up();
	step_name = "chdir";
	if (!getcwd(cwd, sizeof cwd) || cwd[0] != '/')
		strcpy(cwd, "/");
	step_name = "identity";
	maps_by_monitor = has_capability(CAP_SETUID_) && has_capability(CAP_SETGID_);
	if (maps_by_monitor) {
		strcpy(uid_map, "0 0 4294967295");
		strcpy(gid_map, "0 0 4294967295");
	} else {
		snprintf(uid_map, sizeof uid_map, "%u %u 1", (unsigned)geteuid(), (unsigned)geteuid());
		snprintf(gid_map, sizeof gid_map, "%u %u 1", (unsigned)getegid(), (unsigned)getegid());
	}
	step_name = "socketpair";
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		give_up();
	make_group();      /* while we are who the place was given to */
	be_first();      /* for which a power over the host is needed, and that is gone in another user namespace */
	step_name = "namespace";
	if (plan->flags & F_NETNS && join_namespaces() < 0)
		give_up();
	init = start_init();
	step_name = "schedule";
	if (be_as_usual() < 0)
		goto failed;
	if (!(plan->flags & (F_WRAPPED | F_NO_VIEW)) && (joined ? stay_ordinary() < 0 : maps_by_monitor && write_maps(init) < 0)) {
		goto failed;
	}
	monitor_loop(init);
failed:
	report_failure(M_FAILED, step_name, errno, step_path);
	kill(init, SIGKILL);
	waitpid(init, NULL, 0);
	remove_group();
	_exit(125);
}

/* As a command, in a trial: whether connect() works. From a process that init has not started itself: it may be a parent of
 * init's children only that can be traced (kernel.yama.ptrace_scope). */
static int probe_connect(void)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	socklen_t size = sizeof name;
	int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0), status;
	pid_t pid;

	/* Without a path the kernel makes up an abstract name (man 7 unix), which is the sandbox's own. */
	if (server < 0 || client < 0 || bind(server, (struct sockaddr *)&name, sizeof name.sun_family) < 0 || listen(server, 1) < 0 ||
	    getsockname(server, (struct sockaddr *)&name, &size) < 0)
		return errno;
	pid = fork();
	if (pid < 0)
		return errno;
	if (pid == 0)
		_exit(connect(client, (struct sockaddr *)&name, size) < 0 ? errno : 0);
	return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : EINVAL;
}

int main(int argc, char **argv)
{
	static const char name[] = "sandboxed-subprocess ", inside[] = "sandboxed-subprocess-inside ";
	char *end;
	long fd;
	int is_inside;

	if (argc < 1 || !argv[0])
		return 64;
	/* uvloop puts the name of the file in the place of argv[0]; then it stands behind it. */
	if (argc > 1 && strncmp(argv[0], name, sizeof name - 1) && !strncmp(argv[1], name, sizeof name - 1)) {
		argv++;
		argc--;
	}
	if (!strcmp(argv[0], "sandboxed-subprocess-probe"))
		return 0;      /* what detect() runs inside a trial sandbox */
	if (!strcmp(argv[0], "sandboxed-subprocess-probe-connect"))
		return probe_connect();
	/* By both: argv[1] alone is the command's, and may be anything. */
	is_inside = argc == 2 && !strncmp(argv[0], "/proc/self/fd/", 14) && !strncmp(argv[1], inside, sizeof inside - 1);
	if (strncmp(argv[0], name, sizeof name - 1) && !is_inside) {
		dprintf(2, "This is the launcher of the Python package sandboxed_subprocess; it is started by the package.\n");
		return 64;
	}
	errno = 0;
	if (is_inside) {
		fd = strtol(argv[1] + sizeof inside - 1, &end, 10);
		if (errno || *end || fd < 3 || fd > INT_MAX)
			bad_plan("nothing was carried");
		arguments = argv[0];
		arguments_end = argv[1] + strlen(argv[1]) + 1;
		inside_main((int)fd);
	}
	fd = strtol(argv[0] + sizeof name - 1, &end, 10);
	if (errno || *end || end == argv[0] + sizeof name - 1 || fd < 0 || fd > INT_MAX)
		bad_plan("no plan");
	launch_socket = (int)fd;
	copy_arguments(argc, argv);
	mark("start");
	hold_streams();
	parse(receive_plan());
	mark("parse");
	monitor_main();
	return 125;
}
