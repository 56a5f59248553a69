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

/* What the caller's memory holds there, up to the end of a page at a time: the next may not be there. */
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
	return -1;
}

static void tell_observed(uint32_t kind, int error, const char *path)
{
	static uint64_t told[1024];
	static size_t told_count;
	static struct { uint32_t type, kind; int32_t error; uint32_t unused; char path[PATH_MAX]; } m;
	const size_t length = strlen(path);
	uint64_t hash = 14695981039346656037ull + kind;      /* FNV-1a */
	int unread = 0;
	size_t at;

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
		*untold = 1;
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
	return access(link, mode) < 0 && (errno == EROFS || errno == EACCES) ? errno : 0;
}

static void look_at_file(int fd, uint32_t kind, int mode)
{
	static char name[PATH_MAX];
	int error = refusal(fd, mode);

	if (error && name_of_fd(fd, name))
		tell_observed(kind, error, name);
}

static int is_readonly(int fd)
{
	struct statfs fs;

	return fstatfs(fd, &fs) == 0 && fs.f_flags & 1 /* ST_RDONLY */;
}

/* A name in a directory is made or removed there. Whether the mount is read-only is asked first then (mnt_want_write). */
static void look_at_place(int dir, const char *last)
{
	static char name[PATH_MAX];
	int error = is_readonly(dir) ? EROFS : refusal(dir, W_OK | X_OK);
	size_t length;

	if (!error || !name_of_fd(dir, name))
		return;
	length = strcmp(name, "/") ? strlen(name) : 0;
	if (length + 1 + strlen(last) < sizeof name) {
		name[length] = '/';
		strcpy(name + length + 1, last);
		tell_observed(WRITE, error, name);
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
	}
}

static int open_as(int base, pid_t tid, const char *path, int flags)
{
	static char real[PATH_MAX + 64];

	translate(tid, path, real, sizeof real);
	return openat(base, real, O_PATH | O_CLOEXEC | flags);
}

static void look_at_path(const struct observed *o, const struct notification *n, int base, char *path, uint64_t flags)
{
	const pid_t tid = (pid_t)n->pid;
	const int access_mode = (int)(flags & O_ACCMODE);
	int follows = 1, fd, parent = -1;
	char *slash, *last;
	uint32_t kind = WRITE;

	if (o->does == OPENS) {
		if (flags & O_PATH)
			return;
		follows = !(flags & O_NOFOLLOW) && (flags & (O_CREAT | O_EXCL)) != (O_CREAT | O_EXCL);
		kind = access_mode == O_RDONLY && !(flags & O_TRUNC) ? READ : WRITE;
	} else if (o->does == MAKES || o->does == REPLACES || o->does == REMOVES || o->does == MARKS_ITSELF) {
		follows = 0;
	} else if (o->does == MARKS) {
		follows = !(flags & AT_SYMLINK_NOFOLLOW);
	}
	fd = open_as(base, tid, path, follows ? 0 : O_NOFOLLOW);
	if (fd < 0 && errno == EACCES) {
		tell_unreachable(base, kind, path);
		return;
	}
	if (fd < 0 && errno != ENOENT)
		return;
	switch (o->does) {
	case OPENS: case CREATES:
		if (fd >= 0) {
			if (access_mode != O_WRONLY)
				look_at_file(fd, READ, R_OK);
			if (kind == WRITE)
				look_at_file(fd, WRITE, W_OK);
			goto out;
		}
		if (!(flags & O_CREAT))
			goto out;
		break;
	case WRITES:
		if (fd >= 0)
			look_at_file(fd, WRITE, W_OK);
		goto out;
	case MARKS: case MARKS_ITSELF:
		if (fd >= 0)
			look_at_mark(fd);
		goto out;
	case MAKES:
		if (fd >= 0)
			goto out;      /* it is there already */
		break;
	case REPLACES:
		break;
	case REMOVES:
		if (fd < 0)
			goto out;
		break;
	default:
		goto out;
	}
	for (size_t length = strlen(path); length > 1 && path[length - 1] == '/'; length--)
		path[length - 1] = 0;
	slash = strrchr(path, '/');
	last = slash ? slash + 1 : path;
	if (!slash) {
		look_at_place(base, last);
		goto out;
	}
	{
		static char upper[PATH_MAX];

		memcpy(upper, path, (size_t)(last - path));
		upper[last - path] = 0;
		parent = open_as(base, tid, upper, O_DIRECTORY);
		if (parent >= 0)
			look_at_place(parent, last);
		else if (errno == EACCES)
			tell_unreachable(base, WRITE, path);
	}
out:
	if (fd >= 0)
		close(fd);
	if (parent >= 0)
		close(parent);
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
	if (o->path != NONE && n->args[o->path] && read_path(tid, n->args[o->path], path) < 0)
		return;
	/* Without a path it is about the descriptor itself. */
	if (!path[0] && !(o->does == MARKS && (o->path == NONE || !n->args[o->path] || flags & AT_EMPTY_PATH)))
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
	if (base < 0)
		return;
	/* Only now is it certain that the memory was this caller's, and not that of a later process. */
	if (ioctl(listener_fd, SECCOMP_IOCTL_NOTIF_ID_VALID_, &n->id) == 0) {
		if (path[0])
			look_at_path(o, n, base, path, flags);
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
