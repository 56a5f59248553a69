/* Calls that name a file, each told of before it is made: for a policy that observes files. Part of launcher.c; runs in the
 * connector, which has the command's user and mounts, and so can ask of a path what the command will be told.
 *
 * Nothing is decided here. The kernel is told to go on with the call, and what holds the command back are the mounts and Landlock:
 * if it puts another path in the place of the one that was looked at, it deceives the report and nobody else. But the calls that
 * the filter refuses by their arguments are refused here, by the conditions that stand in the plan: they are never gone on with.
 */

enum { OPENS = 1, CREATES, MAKES, REPLACES, REMOVES, WRITES, MARKS, MARKS_ITSELF };
enum { NONE = 255 };                       /* no such argument */
enum { READ = 1, WRITE = 2 };

static struct observed { uint32_t nr; uint8_t does, dir, path, flags; const char *conditions; uint32_t length; } observed[96];
static size_t observed_count;
static volatile int *untold;               /* shared with init: something was refused, and nobody was told */

/* Parsing: before anything is begun. */
static void add_observed(const struct record *r)
{
	struct observed o = {
		.nr = r->n.a, .does = (uint8_t)r->n.b, .dir = (uint8_t)(r->n.b >> 8), .path = (uint8_t)(r->n.b >> 16),
		.flags = (uint8_t)(r->n.b >> 24), .conditions = r->raw, .length = r->raw_length,
	};

	for (uint32_t at = 0; at < o.length;) {
		uint64_t count;

		if (o.length - at < sizeof count)
			bad_plan("plan: malformed conditions");
		memcpy(&count, o.conditions + at, sizeof count);
		at += (uint32_t)sizeof count;
		if (count > 6 || count * 24 > o.length - at)
			bad_plan("plan: malformed conditions");
		at += (uint32_t)count * 24;
	}
	if (observed_count == sizeof observed / sizeof *observed || !o.does || o.does > MARKS_ITSELF || (o.dir > 5 && o.dir != NONE) ||
	    (o.path > 5 && o.path != NONE) || (o.flags > 5 && o.flags != NONE))
		bad_plan("plan: not a call that can be observed");
	observed[observed_count++] = o;
}

static int has_observed(void)
{
	return observed_count != 0;
}

/* Any group of conditions, all of which hold. */
static int is_refused(const struct observed *o, const struct notification *n)
{
	for (uint32_t at = 0; at < o->length;) {
		uint64_t count, c[3];
		int all = 1;

		memcpy(&count, o->conditions + at, sizeof count);
		at += (uint32_t)sizeof count;
		for (; count; count--, at += (uint32_t)sizeof c) {
			memcpy(c, o->conditions + at, sizeof c);
			all &= c[0] < 6 && (n->args[c[0]] & c[1]) == c[2];
		}
		if (all)
			return 1;
	}
	return 0;
}

/* Something may have been refused that nobody is told of: the caller then does not call its list complete. */
static void miss(void)
{
	*untold = 1;
}

/* What the caller's memory holds there, up to the end of a page at a time: the next may not be there. Returns 1 where it is too long
 * for a path, -1 where it cannot be read: not there for the caller either, or for nobody but him (memfd_secret(2)). */
static int read_path(pid_t tid, uint64_t address, char *path)
{
	for (size_t held = 0; held < PATH_MAX;) {
		size_t room = 4096 - (address + held) % 4096;
		struct iovec here = {path + held, room < PATH_MAX - held ? room : PATH_MAX - held};
		struct iovec there = {(void *)(uintptr_t)(address + held), here.iov_len};
		ssize_t n = process_vm_readv(tid, &here, 1, &there, 1, 0);

		if (n <= 0)
			return -1;
		if (memchr(path + held, 0, (size_t)n))
			return 0;
		held += (size_t)n;
	}
	return 1;
}

static void tell_observed(uint32_t kind, int error, const char *path)
{
	static uint64_t told[1024];
	static size_t told_count;
	static struct { uint32_t type, kind; int32_t error; uint32_t unused; char path[PATH_MAX]; } m;
	const size_t length = strlen(path);
	static uint64_t basis;
	uint64_t hash;
	int unread = 0;
	size_t at;

	/* FNV-1a, from where the command cannot know. */
	if (!basis)
		(void)syscall(SYS_getrandom, &basis, sizeof basis, 1 /* GRND_NONBLOCK */);
	hash = basis ^ (14695981039346656037ull + kind * 256 + (uint32_t)error);
	for (size_t i = 0; i < length; i++)
		hash = (hash ^ (unsigned char)path[i]) * 1099511628211ull;
	hash |= 1;
	for (at = hash >> 32 & 1023; told[at]; at = (at + 1) & 1023)
		if (told[at] == hash)
			return;
	m.type = M_OBSERVED;
	m.kind = kind;
	m.error = error;
	memcpy(m.path, path, length);
	/* The record of the end must find room, and whoever listens may do so only then. */
	if (told_count == sizeof told / sizeof *told - 1 || ioctl(launch_socket, SIOCOUTQ_, &unread) < 0 || unread > 131072 ||
	    send(launch_socket, &m, offsetof(__typeof__(m), path) + length, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		miss();
	else
		told[at] = hash, told_count++;
}

/* Where a descriptor of ours leads; NULL where that is no path. */
static const char *name_of_fd(int fd, char *name)
{
	char link[64];
	ssize_t n;

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	n = readlink(link, name, PATH_MAX - 1);
	if (n <= 0 || n == PATH_MAX - 1)
		miss();
	if (n <= 0 || name[0] != '/')
		return NULL;
	name[n] = 0;
	return name;
}

/* What the command would be told, since it is the same user in the same mounts; 0 where it may. */
static int refusal(int fd, int mode)
{
	char link[64];

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	if (access(link, mode) == 0)
		return 0;
	if (errno == EROFS || errno == EACCES)
		return errno;
	miss();
	return 0;
}

static int is_readonly(int fd)
{
	struct statfs fs;

	if (fstatfs(fd, &fs) == 0)
		return (fs.f_flags & 1 /* ST_RDONLY */) != 0;
	miss();
	return 0;
}

/* Landlock holds the command and not us. EPERM, which nobody else says here, where no rule allows it. */
static int landlock_refusal(const char *name, uint64_t rights)
{
	struct record r;

	if (!plan->ll_fs)
		return 0;
	FOR_EACH_RECORD(r)
		if (r.kind == K_RULE && r.n.c & rights) {
			size_t length = strlen(r.s[0]);

			if (!strcmp(r.s[0], "/") || (!strncmp(name, r.s[0], length) && (!name[length] || name[length] == '/')))
				return 0;
		}
	return EPERM;
}

/* by_name: not by a descriptor that was handed over, for which there is a rule of its own. */
static void look_at_file(int fd, uint32_t kind, int mode, int by_mount, int by_name)
{
	static char name[PATH_MAX];
	int error = by_mount && is_readonly(fd) ? EROFS : refusal(fd, mode);

	if (!error && (kind == READ || !by_name))
		return;
	if (!name_of_fd(fd, name))
		return;
	if (!error)
		error = landlock_refusal(name, LL_WRITE_FILE);
	if (error)
		tell_observed(kind, error, name);
}

/* A name in a directory is made or removed there. Whether the mount is read-only is asked first then (mnt_want_write). */
static void look_at_place(int dir, const char *last)
{
	static char name[PATH_MAX];
	int error = is_readonly(dir) ? EROFS : refusal(dir, W_OK | X_OK);
	size_t length;

	if (!*last || !strcmp(last, ".") || !strcmp(last, "..") || !name_of_fd(dir, name))
		return;
	if (!error)
		error = landlock_refusal(name, 0x1ff0 /* to remove and to make what there may be in a directory */);
	if (!error)
		return;
	length = strcmp(name, "/") ? strlen(name) : 0;
	if (length + 1 + strlen(last) < sizeof name) {
		name[length] = '/';
		strcpy(name + length + 1, last);
		tell_observed(WRITE, error, name);
	} else {
		miss();
	}
}

/* Its mode, owner, times or attributes are set. Whose file it is decides, too, but not by anything of ours. */
static void look_at_mark(int fd)
{
	static char name[PATH_MAX];

	if (is_readonly(fd) && name_of_fd(fd, name))
		tell_observed(WRITE, EROFS, name);
}

/* A directory in the path cannot be entered; by whom of them, the caller of all this finds out. */
static void tell_unreachable(int base, uint32_t kind, const char *path)
{
	static char name[PATH_MAX];
	size_t length;

	if (path[0] == '/') {
		tell_observed(kind, EACCES, path);
	} else if (name_of_fd(base, name) && (length = strlen(name)) + 1 + strlen(path) < sizeof name) {
		name[length] = '/';
		strcpy(name + length + 1, path);
		tell_observed(kind, EACCES, name);
	} else {
		miss();
	}
}

static int open_as(int base, pid_t tid, const char *path, int flags)
{
	static char real[PATH_MAX + 64];

	translate(tid, path, real, sizeof real);
	return openat(base, real, O_PATH | O_CLOEXEC | flags);
}

/* The directory of a path's last name, which is returned in it; slashes at the end are cut off. */
static int open_parent(int base, pid_t tid, char *path, char **last)
{
	static char upper[PATH_MAX];
	char *slash;

	for (size_t length = strlen(path); length > 1 && path[length - 1] == '/'; length--)
		path[length - 1] = 0;
	slash = strrchr(path, '/');
	*last = slash ? slash + 1 : path;
	if (!slash)
		return fcntl(base, F_DUPFD_CLOEXEC, 3);
	memcpy(upper, path, (size_t)(*last - path));
	upper[*last - path] = 0;
	return open_as(base, tid, upper, O_DIRECTORY);
}

/* What a path leads to, by steps: where a link leads to nothing yet, that is the place where a file would be made, and /dev/stdout
 * is the caller's. `base` and `path` are then those of the last step, and `base` is to be closed in any case. */
static int follow(int *base, pid_t tid, char *path, int follows, int *by_name)
{
	static char target[PATH_MAX];

	for (int hops = 0; hops < 40; hops++) {
		int fd = open_as(*base, tid, path, O_NOFOLLOW), upper;
		struct stat st;
		struct statfs fs;
		char *last;
		ssize_t n;

		if (fd < 0 || !follows || fstat(fd, &st) < 0 || !S_ISLNK(st.st_mode))
			return fd;
		if (fstatfs(fd, &fs) == 0 && fs.f_type == 0x9fa0 /* PROC_SUPER_MAGIC */) {      /* those lead elsewhere than they say */
			close(fd);
			*by_name = 0;
			return open_as(*base, tid, path, 0);
		}
		n = readlinkat(fd, "", target, sizeof target - 1);
		close(fd);
		if (n <= 0)
			break;
		target[n] = 0;
		upper = open_parent(*base, tid, path, &last);
		if (upper < 0)
			return -1;
		close(*base);
		*base = upper;
		strcpy(path, target);
	}
	errno = ELOOP;
	return -1;
}

/* The mount of something that is protected: it cannot be moved or removed (EBUSY). */
static int is_mount(int fd)
{
	static uint64_t buffer[32];      /* struct statx: the attributes are in the second of these */

	if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, 0u, buffer) == 0)
		return (buffer[1] & 0x2000 /* STATX_ATTR_MOUNT_ROOT */) != 0;
	miss();
	return 0;
}

static void look_at_path(const struct observed *o, const struct notification *n, int *base, char *path, uint64_t flags)
{
	const pid_t tid = (pid_t)n->pid;
	const int access_mode = (int)(flags & O_ACCMODE), is_new = (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL);
	int follows = 1, by_name = 1, fd, parent = -1;
	char *last;
	struct stat st;
	uint32_t kind = WRITE;

	if (o->does == OPENS) {
		if (flags & O_PATH)
			return;
		follows = !(flags & O_NOFOLLOW) && !is_new;
		kind = access_mode == O_RDONLY && !(flags & O_TRUNC) ? READ : WRITE;
	} else if (o->does == MAKES || o->does == REPLACES || o->does == REMOVES || o->does == MARKS_ITSELF) {
		follows = 0;
	} else if (o->does == MARKS) {
		follows = !(flags & AT_SYMLINK_NOFOLLOW);
	}
	fd = follow(base, tid, path, follows, &by_name);
	if (fd < 0 && errno == EACCES) {
		tell_unreachable(*base, kind, path);
		return;
	}
	if (fd < 0 && errno != ENOENT) {
		if (errno != ENOTDIR && errno != ELOOP && errno != ENAMETOOLONG)
			miss();
		return;
	}
	if (fd >= 0 && fstat(fd, &st) < 0) {
		miss();
		goto out;
	}
	switch (o->does) {
	case OPENS: case CREATES:
		if (fd < 0 && !(flags & O_CREAT))
			goto out;
		if (fd < 0)
			break;
		/* What fails for another reason: it is there (EEXIST), a directory (EISDIR), a link (ELOOP). */
		if (is_new || S_ISLNK(st.st_mode) || (S_ISDIR(st.st_mode) && kind == WRITE && !(flags & 020000000 /* __O_TMPFILE */)))
			goto out;
		if (access_mode != O_WRONLY)
			look_at_file(fd, READ, R_OK, 0, 0);
		if (kind == WRITE && S_ISFIFO(st.st_mode))
			look_at_mark(fd);      /* a read-only mount does not hold them; Landlock does */
		else if (kind == WRITE)      /* whether the mount is read-only is asked first where it would be emptied */
			look_at_file(fd, WRITE, W_OK, flags & O_TRUNC && S_ISREG(st.st_mode), by_name);
		goto out;
	case WRITES:
		if (fd >= 0 && !S_ISDIR(st.st_mode))
			look_at_file(fd, WRITE, W_OK, 1, by_name);
		goto out;
	case MARKS: case MARKS_ITSELF:
		if (fd >= 0)
			look_at_mark(fd);
		goto out;
	case MAKES:
		if (fd >= 0)
			goto out;      /* it is there already */
		break;
	case REMOVES:
		if (fd < 0)
			goto out;
		break;
	default:
		break;
	}
	if (fd >= 0 && is_mount(fd)) {
		static char name[PATH_MAX];

		if (name_of_fd(fd, name))
			tell_observed(WRITE, EROFS, name);
		goto out;
	}
	parent = open_parent(*base, tid, path, &last);
	if (parent >= 0)
		look_at_place(parent, last);
	else if (errno == EACCES)
		tell_unreachable(*base, WRITE, path);
	else if (errno != ENOENT && errno != ENOTDIR)
		miss();
out:
	if (fd >= 0)
		close(fd);
	if (parent >= 0)
		close(parent);
}

/* One slash for several, none before a dot that means nothing: so that /proc/self is known as such. */
static void tidy_path(char *path)
{
	char *to = path;

	for (const char *from = path; *from; from++)
		if (from[0] == '/' && from[1] == '.' && from[2] == '/')
			from++;
		else if (from[0] != '/' || from[1] != '/')
			*to++ = *from;
	*to = 0;
}

static void look_at_call(const struct observed *o, const struct notification *n)
{
	static char path[PATH_MAX];
	const pid_t tid = (pid_t)n->pid;
	char base_path[64];
	uint64_t flags = o->flags == NONE ? 0 : n->args[o->flags];
	int base, number = o->dir == NONE ? AT_FDCWD : (int)n->args[o->dir];

	if (o->does == CREATES)
		flags = O_WRONLY | O_CREAT | O_TRUNC;
	path[0] = 0;
	if (o->path != NONE && n->args[o->path]) {
		int failed = read_path(tid, n->args[o->path], path);

		if (failed < 0)
			miss();
		if (failed)
			return;
		tidy_path(path);
	}
	/* Without a path it is about the descriptor itself: for calls that have flags, and utimensat(2). */
	if (!path[0] && !(o->does == MARKS && (o->path == NONE || (o->flags != NONE && (!n->args[o->path] || flags & AT_EMPTY_PATH)))))
		return;
	if (!path[0] && number == AT_FDCWD)
		strcpy(path, ".");
	if (path[0] == '/')
		strcpy(base_path, "/");
	else if (number == AT_FDCWD)
		snprintf(base_path, sizeof base_path, "/proc/%d/cwd", (int)tid);
	else
		snprintf(base_path, sizeof base_path, "/proc/%d/fd/%d", (int)tid, number);
	base = open(base_path, O_PATH | O_CLOEXEC);
	if (base < 0) {
		if (errno != ENOENT && errno != ESRCH)
			miss();      /* and not a descriptor that is none */
		return;
	}
	/* Only now is it certain that the memory was this caller's, and not that of a later process. */
	if (ioctl(listener_fd, SECCOMP_IOCTL_NOTIF_ID_VALID_, &n->id) == 0) {
		if (path[0])
			look_at_path(o, n, &base, path, flags);
		else
			look_at_mark(base);
	}
	close(base);
}

/* Returns 0 if the call is none that is only observed. */
static int observe(const struct notification *n)
{
	struct answer a = {.id = n->id, .flags = 1 /* SECCOMP_USER_NOTIF_FLAG_CONTINUE */};
	int found = 0;

	for (size_t i = 0; i < observed_count; i++)
		if (observed[i].nr == (uint32_t)n->nr) {
			if (is_refused(observed + i, n))
				return 0;
			found = 1;
		}
	if (!found)
		return 0;
	for (size_t i = 0; i < observed_count; i++)
		if (observed[i].nr == (uint32_t)n->nr)
			look_at_call(observed + i, n);
	(void)ioctl(listener_fd, SECCOMP_IOCTL_NOTIF_SEND_, &a);
	return 1;
}
