"""What can be said of a command without rules: programs that only read, and programs that destroy or take over.

For each reader the options that are known to do nothing else; one that is not known here is no reader. What is dangerous is so
whatever its options: a flag such as `-n` or `--help` is no way around, since nobody reads it as carefully as the program does.
"""

from __future__ import annotations

import re

from ._identity import Program, families
from ._programs import Opened, Options, Words
from ._rules import Decision, bare_name
from ._shell import Script
from ._words import Dynamic, Word

# program: letters; letters with a value; long options; long options with a value. A trailing "!" : no option of it does harm, so
# its words may be dynamic.
_READERS_TEXT = """
ls! aAbBcCdDfFgGhHiklLmnNopqQrRsStuUvxXZ1 | ITw | all almost-all author escape ignore-backups directory dired classify file-type full-time group-directories-first no-group human-readable si dereference inode kibibytes numeric-uid-gid literal quote-name reverse recursive size context zero color help version | block-size color format hide hyperlink indicator-style ignore quoting-style sort time time-style tabsize width
cat! AbeEnsTtuv | | show-all number-nonblank show-ends number squeeze-blank show-tabs show-nonprinting help version |
tac! br | s | before regex help version | separator
head! qvz | nc | quiet silent verbose zero-terminated help version | bytes lines
tail! fFqvz | ncs | follow quiet silent verbose zero-terminated retry help version | bytes lines follow max-unchanged-stats sleep-interval
wc! cmlLw | | bytes chars lines max-line-length words help version | files0-from total
cut! snz | bcdf | complement only-delimited zero-terminated help version | bytes characters delimiter fields output-delimiter
tr! cCdst | | complement delete squeeze-repeats truncate-set1 help version |
nl! p | bdfhilnsvw | no-renumber help version | body-numbering section-delimiter footer-numbering header-numbering line-increment join-blank-lines number-format number-separator starting-line-number number-width
rev! | | help version |
paste! sz | d | serial zero-terminated help version | delimiters
join! iz | 12aejotv | ignore-case check-order nocheck-order header zero-terminated help version |
comm! 123z | | check-order nocheck-order total zero-terminated help version | output-delimiter
fold! bcs | w | bytes spaces help version | width
fmt! cstu | wp | crown-margin split-only tagged-paragraph uniform-spacing | width prefix goal
column! tnxeR | csoNHlTWE | table fillrows json | separator output-separator output-width table-columns
expand! i | t | initial help version | tabs
unexpand! a | t | all first-only help version | tabs
echo! neE | | |
printf! | | help version |
pwd! LP | | logical physical |
cd! LPe | | |
true! | | help version |
false! | | help version |
test! | | |
[! | | |
:! | | |
expr! | | help version |
seq! w | fs | equal-width help version | format separator
basename! az | s | multiple zero help version | suffix
dirname! z | | zero help version |
realpath! emLPqsz | | canonicalize-existing canonicalize-missing logical physical quiet strip no-symlinks zero | relative-to relative-base
readlink! efmnqsvz | | canonicalize canonicalize-existing canonicalize-missing no-newline quiet silent verbose zero |
stat! Lft | c | dereference file-system terse help version | format printf cached
du! 0abcDhHklLmPsSx | Bdt X | null all apparent-size bytes total dereference-args human-readable inodes kilobytes dereference megabytes no-dereference separate-dirs si summarize one-file-system time | block-size max-depth exclude threshold time-style
df! ahHiklPTv | Btx | all human-readable si inodes local portability print-type total sync no-sync | block-size type exclude-type output
id! agGnruzZ | | group groups name real user zero context help version |
whoami! | | help version |
groups! | | help version |
which! as | | all |
type! aftpP | | |
uname! amnoprsvi | | all kernel-name nodename kernel-release kernel-version machine processor hardware-platform operating-system |
arch! | | |
nproc! | | all | ignore
uptime! psV | | pretty since |
hostname! dfisAI | | fqdn short domain long ip-address all-ip-addresses |
free! bkmghltvw | sc | bytes kibi mebi gibi human lohi total wide |
printenv! 0 | | null help version |
getconf! a | v | |
locale! ackm | | all-locales all-charmaps charmaps category-name keyword-name |
cmp! bls | in | print-bytes verbose quiet silent | ignore-initial bytes
md5sum! bctwz | | binary check tag text zero ignore-missing quiet status strict warn |
sha1sum! bctwz | | binary check tag text zero ignore-missing quiet status strict warn |
sha224sum! bctwz | | binary check tag text zero ignore-missing quiet status strict warn |
sha256sum! bctwz | | binary check tag text zero ignore-missing quiet status strict warn |
sha384sum! bctwz | | binary check tag text zero ignore-missing quiet status strict warn |
sha512sum! bctwz | | binary check tag text zero ignore-missing quiet status strict warn |
b2sum! bctwz | l | binary check tag text zero ignore-missing quiet status strict warn | length
cksum! z | al | base64 raw tag untagged zero check | algorithm length
sum! rs | | sysv |
strings! adfhvw | nte | all print-file-name include-all-whitespace | bytes radix encoding
od! abcdfhilosvx | AjNStw | traditional output-duplicates | address-radix skip-bytes read-bytes strings format endian width
hexdump! bcCdovx | enfs | canonical no-squeezing | length skip
numfmt! z | d | debug header zero-terminated | from to from-unit to-unit format padding suffix invalid field delimiter grouping round
factor! h | | exponents |
tty! s | | silent quiet |
sleep! | | |
grep! EFGPivwxcLlqsbHhnoTUzaIrRyZ | ABCDdefm | extended-regexp fixed-strings basic-regexp perl-regexp ignore-case no-ignore-case invert-match word-regexp line-regexp count files-without-match files-with-matches only-matching quiet silent no-messages byte-offset with-filename no-filename line-number initial-tab null null-data text recursive dereference-recursive color colour line-buffered binary version help | after-context before-context context regexp file max-count color colour binary-files devices directories exclude exclude-dir exclude-from include label
egrep! = grep
fgrep! = grep
zgrep! = grep
sort bdfghiMnRrsuVzcCm | kSt | ignore-leading-blanks dictionary-order ignore-case general-numeric-sort ignore-nonprinting month-sort human-numeric-sort numeric-sort random-sort reverse version-sort check merge stable unique zero-terminated debug help version | key field-separator buffer-size parallel sort batch-size check
uniq cdiuzD | fsw | count repeated ignore-case unique zero-terminated all-repeated group help version | skip-fields skip-chars check-chars all-repeated group
rg ncivwxlFSsqPUuHhNopabe0L | egtTmABCdjMrf | line-number no-line-number count count-matches ignore-case case-sensitive smart-case invert-match word-regexp line-regexp files files-with-matches files-without-match fixed-strings hidden no-hidden no-ignore no-ignore-vcs no-ignore-parent multiline multiline-dotall pcre2 only-matching heading no-heading column no-messages with-filename no-filename json trim stats null vimgrep unrestricted follow type-list version help text pretty no-config | regexp glob iglob type type-not max-count after-context before-context context color colors max-depth maxdepth max-filesize threads sort sortr replace max-columns encoding engine ignore-file path-separator file
fd HILsadguipFq0l1 | tedEcjS | hidden no-ignore case-sensitive ignore-case absolute-path list-details follow full-path glob print0 | type extension max-depth min-depth exact-depth exclude color threads size changed-within changed-before owner max-results
file bhikLNrs0E | eFP | brief checking-printout dereference no-dereference mime mime-type mime-encoding keep-going list no-pad raw special-files print0 help version | exclude separator parameter
date Ru | dI | rfc-email utc universal help version iso-8601 | date rfc-3339 iso-8601 reference
diff qsecunypTtdNrPiEbwBZaH | CUWIxXLSF | brief report-identical-files side-by-side ignore-case ignore-all-space ignore-space-change ignore-blank-lines recursive new-file text unified context minimal speed-large-files strip-trailing-cr suppress-common-lines left-column expand-tabs color no-dereference help version | unified context width label exclude exclude-from starting-file color palette tabsize show-function-line ignore-matching-lines
tree adfilpshugDFqNQrtcUCnXJSAx | LPIHT | dirsfirst noreport inodes device prune gitignore matchdirs ignore-case du si | filelimit charset sort timefmt
jq cnreasSCMj | | compact-output null-input raw-output exit-status ascii-output slurp sort-keys color-output monochrome-output join-output tab raw-input raw-output0 | indent
ps aAdefFlLmNTuvwxyHjcZ | CGgoOpPsStUkq | forest no-headers headers | sort pid ppid user format
pgrep flLnoxvac | gGPsutUFd | full exact list-name list-full count newest oldest |
lsblk abdfilmnoPpStrz | eIo | all json list paths nodeps | output
lscpu aebpx | | all json |
base64 diw | w | decode ignore-garbage | wrap
nm aAgDnopruCSsv | fXt | |
ldconfig p | | print-cache |
sw_vers | | |
"""
_READERS: dict[str, tuple[bool, str, str, str, str]] = {}
for _line in _READERS_TEXT.strip().splitlines():
    _name, _, _rest = _line.partition(" ")
    if _rest.startswith("= "):
        _READERS[_name.rstrip("!")] = _READERS[_rest[2:]]
        continue
    _fields = [field.strip() for field in (_rest + " | | | |").split("|")]
    _READERS[_name.rstrip("!")] = (_name.endswith("!"), _fields[0], _fields[1].replace(" ", ""), _fields[2], _fields[3])

_DESTROYING = frozenset(
    """rm rmdir unlink shred srm wipe dd mkfs mke2fs mkswap fdisk sfdisk cfdisk gdisk sgdisk parted wipefs blkdiscard hdparm shutdown reboot
    halt poweroff telinit sudo su doas pkexec sudoedit visudo passwd chpasswd useradd userdel usermod groupdel insmod rmmod modprobe kexec
    nsenter lvremove vgremove pvremove zpool cryptsetup format diskpart del erase deltree""".split()
)
_GIT_READERS = {
    "status": "s b u sb porcelain short branch long ignored untracked-files show-stash ahead-behind no-ahead-behind column no-column renames"
    " no-renames find-renames verbose v z null",
    "log": "",
    "show": "",
    "diff": "",
    "shortlog": "s n e c sn sne summary numbered email all since until no-merges group after before author",
    "blame": "w L l t f n s e p M C b root incremental porcelain line-porcelain date show-email show-name show-number abbrev color-lines since"
    " ignore-rev contents score-debug no-color",
    "rev-parse": "abbrev-ref short verify quiet q show-toplevel show-prefix show-cdup git-dir absolute-git-dir git-common-dir is-inside-work-tree"
    " is-inside-git-dir is-bare-repository is-shallow-repository symbolic symbolic-full-name all branches tags remotes local-env-vars"
    " show-superproject-working-tree revs-only no-revs flags no-flags default path-format git-path show-object-format",
    "ls-files": "c d m o i s u k t v f z cached deleted modified others ignored stage unmerged killed eol error-unmatch full-name recurse-submodules"
    " exclude-standard exclude x X exclude-from directory no-empty-directory with-tree abbrev deduplicate format sparse",
    "ls-tree": "d r t l z long name-only name-status object-only full-name full-tree abbrev format",
    "rev-list": "all count max-count n since until no-merges merges left-right cherry-pick first-parent reverse oneline parents children objects"
    " branches tags remotes author grep abbrev-commit topo-order date-order left-only right-only",
    "describe": "all tags contains abbrev candidates exact-match long match exclude always first-parent dirty broken debug",
    "cat-file": "t s e p batch-check",
    "merge-base": "a all octopus independent is-ancestor fork-point",
    "name-rev": "tags refs exclude all name-only undefined no-undefined always",
    "show-ref": "head tags heads branches d dereference s hash verify exists abbrev q quiet",
    "for-each-ref": "count shell sort format color points-at merged no-merged contains no-contains ignore-case exclude",
    "check-ignore": "q v n z quiet verbose non-matching no-index",
    "check-attr": "a all cached z source",
    "count-objects": "v H verbose human-readable",
    "cherry": "v abbrev",
    "whatchanged": "", "range-diff": "", "var": "l", "grep": "", "version": "build-options", "stripspace": "s c",
    "branch": "a r v vv l all remotes verbose list show-current contains no-contains merged no-merged sort points-at format color no-color"
    " column no-column abbrev no-abbrev ignore-case i q quiet",
    "tag": "l n list contains no-contains merged no-merged sort points-at format color column ignore-case i",
    "remote": "v verbose", "stash": "", "reflog": "", "config": "get get-all get-regexp list l show-origin show-scope global local system worktree"
    " name-only null z type bool int path includes get-urlmatch get-color default", "worktree": "porcelain v z",
}  # fmt: skip
_GIT_LOG = frozenset(
    """oneline graph decorate all n p patch u s no-patch stat numstat shortstat dirstat summary name-only name-status raw cc c m follow no-merges merges
    first-parent reverse since until after before author committer grep i regexp-ignore-case E extended-regexp F fixed-strings P perl-regexp
    all-match invert-grep max-count skip pretty format abbrev-commit no-abbrev-commit date relative-date branches tags remotes left-right
    cherry-pick cherry-mark boundary S G L pickaxe-regex pickaxe-all diff-filter M C R D B find-renames find-copies find-copies-harder no-renames U unified w b
    ignore-all-space ignore-space-change ignore-blank-lines ignore-space-at-eol ignore-cr-at-eol word-diff word-diff-regex color-words color
    no-color color-moved minimal patience histogram diff-algorithm indent-heuristic cached staged merge-base relative no-relative a text
    binary full-index abbrev exit-code check inter-hunk-context W function-context src-prefix dst-prefix no-prefix z submodule
    ignore-submodules no-ext-diff no-textconv quiet q simplify-by-decoration topo-order date-order author-date-order ancestry-path
    notes no-notes decorate-refs decorate-refs-exclude source log-size full-history dense sparse walk-reflogs g
    compact-summary patch-with-stat no-decorate no-index children parents 0 1 2 3 expand-tabs exclude count""".split()
)
_GIT_GREP = frozenset(
    """cached no-index untracked recurse-submodules a text no-textconv i ignore-case I max-depth r recursive no-recursive w word-regexp
    v invert-match h H full-name E extended-regexp G basic-regexp P perl-regexp F fixed-strings n line-number column l files-with-matches
    name-only L files-without-match z null o only-matching c count color no-color break heading p show-function A after-context B
    before-context C context W function-context m max-count e and or not all-match q quiet threads exclude-standard""".split()
)
_LIST_FIRST = {"stash": ("list", "show"), "reflog": ("show",), "remote": ("get-url",), "worktree": ("list",), "config": ()}


def judge(words: Words, program: Program, opened: Opened | None, names: frozenset[str]) -> tuple[Decision, str] | None:
    """What is known of a simple command: ("allow", ...), ("forbidden", ...), or None."""
    called = next((name for name in (bare_name(program.spelled), *sorted(names)) if _destroys(name)), None)
    if called is not None:
        return "forbidden", f"{called} destroys, or takes over"
    if "git" in names:
        found = _git(words, opened)
        if found is not None:
            return found
    elif _dangerous_call(words, names):
        return "forbidden", f"{' '.join(words[:4])} destroys"
    if opened is not None and (
        opened.payloads or opened.problems or opened.writes or opened.assigns or opened.guarded is not None
    ):
        return None
    name = bare_name(program.spelled)
    if "git" in names:
        return None
    if _reads(name, words):
        return "allow", f"{name} only reads"
    return None


def _destroys(name: str) -> bool:
    return name in _DESTROYING or name.startswith("mkfs.")


def _dangerous_call(words: Words, names: frozenset[str]) -> bool:
    if names & {"chmod", "chown", "chgrp"}:
        recursive = any(re.fullmatch(r"-[a-zA-Z]*R[a-zA-Z]*|--recursive", w) for w in words[1:])
        return recursive and any(re.fullmatch(r"/|/\*|~/?|\$HOME/?|/(etc|usr|bin|lib|var|home)/?", str(w)) for w in words[1:])
    if "kill" in names:
        return "-1" in words[2:] or ("--" in words and "-1" in words)
    if "crontab" in names:
        return any(re.fullmatch(r"-[a-z]*r[a-z]*", w) for w in words[1:])
    if "iptables" in names or "nft" in names:
        return any(w in ("-F", "--flush", "flush") for w in words[1:])
    if "init" in names:
        return any(w in ("0", "6") for w in words[1:2])
    if "systemctl" in names:
        return any(w in ("poweroff", "reboot", "halt", "kexec", "rescue", "emergency") for w in words[1:])
    if "docker" in names or "podman" in names:
        return "--privileged" in words
    return False


def _reads(name: str, words: Words) -> bool:
    if name == "find":
        allowed = set("-name -iname -path -ipath -type -maxdepth -mindepth -size -mtime -mmin -newer -not -o -a -and -or ! ( ) -print -print0 -prune"
                      " -empty -perm -user -group -regex -iregex -regextype -ls -quit -L -H -P -xdev -mount -depth -follow -atime -ctime -amin -cmin"
                      " -links -inum -printf -readable -writable -executable -true -false -wholename -iwholename -daystart -nouser -nogroup"
                      " -samefile -xtype -anewer -cnewer -lname -ilname -noleaf -O0 -O1 -O2 -O3 , --version --help".split())  # fmt: skip
        return not any((word.startswith(("-", "(", "!")) and word not in allowed and not re.fullmatch(r"-\d+[a-zA-Z]?|-newer[aBcm][aBcmt]", word))
                       or (isinstance(word, Dynamic) and not word.start and word.startswith("$")) for word in words[1:])  # fmt: skip
    if name == "sed":
        rest = [word for word in words[1:] if word not in ("-n", "--quiet", "--silent", "-E", "-r")]
        quiet = any(word in ("-n", "--quiet", "--silent") for word in words[1:])
        if any(isinstance(word, Dynamic) and not word.start for word in rest) or any(w.startswith("-") for w in rest):
            return False
        return quiet and bool(rest) and re.fullmatch(r"(\d+|\$)?(,(\d+|\$))?p(;(\d+|\$)(,(\d+|\$))?p)*", rest[0]) is not None
    if name == "env":
        return len(words) == 1
    if name == "export":
        return False
    known = _READERS.get(name)
    if known is None:
        return False
    free, flags, valued, long, long_valued = known
    if name in ("echo", "printf", "[", "test", "expr", ":", "true", "false"):
        return not (name == "printf" and len(words) > 1 and words[1].startswith("-v"))
    if not free and any(isinstance(word, Dynamic) and (not word.start or word.start.startswith("-")) for word in words[1:]):
        return False
    plain: Words = tuple([_harmless(word) if free else word for word in words])
    if name in ("head", "tail"):
        plain = tuple([w for w in plain if not re.fullmatch(r"[-+]\d+[bcklqfv]*", w)])
    options = Options(plain, flags, valued, long, long_valued, permute=True)
    if options.unknown is not None:
        return False
    for option, value, _ in options.found:
        if option in long.split() and value and option not in long_valued.split():
            return False
    operands = len(options.operands)
    if name == "uniq":
        return operands < 2  # the second is written
    if name == "date":
        return all(str(plain[i]).startswith("+") for i in options.operands)
    if name == "hostname":
        return operands == 0
    if name == "base64":
        return operands < 2
    return True


def _harmless(word: Word) -> Word:
    return "x" if isinstance(word, Dynamic) else word


def _git(words: Words, opened: Opened | None) -> tuple[Decision, str] | None:
    """git, whose subcommands are programs of their own."""
    plain = words
    if opened is not None and opened.spellings:
        plain = opened.spellings[-1][0]
    verb = plain[1] if len(plain) > 1 else ""
    rest = plain[2:]
    flags = [word for word in rest if word.startswith("-")]
    if verb == "push":
        for word in rest:
            long = word.partition("=")[0]
            if (len(long) > 2 and any(f.startswith(long) for f in ("--force", "--force-with-lease", "--mirror", "--delete", "--prune"))) or (
                re.fullmatch(r"-[a-zA-Z46]*[fd][a-zA-Z46]*", word) or re.match(r"\+[^ ]|:[^ ]", word)):  # fmt: skip
                return "forbidden", "git push overwrites or deletes what others have"
    if verb == "reset" and any(len(f) > 3 and "--hard".startswith(f) for f in flags):
        return "forbidden", "git reset --hard loses what is not committed"
    if verb == "clean" and any(
        re.fullmatch(r"-[a-zA-Z]*f[a-zA-Z]*", f) or (len(f) > 2 and "--force".startswith(f)) for f in flags
    ):
        return "forbidden", "git clean deletes what is not committed"
    if verb == "branch" and any(re.fullmatch(r"-[a-zA-Z]*D[a-zA-Z]*", f) for f in flags):
        return "forbidden", "git branch -D loses commits"
    if opened is not None and (opened.payloads or opened.problems or opened.writes or not all(h for _, h in opened.spellings)):
        return None
    known = _GIT_READERS.get(verb)
    if known is None or any(isinstance(word, Dynamic) and (not word.start or word.start.startswith("-")) for word in rest):
        return ("allow", "git --version only reads") if words[1:] == ("--version",) else None
    if any("%G" in word for word in rest):
        return None  # a signature is verified by whatever program the configuration names
    allowed = frozenset(known.split())
    if verb in ("log", "show", "diff", "whatchanged", "range-diff", "shortlog"):
        allowed |= _GIT_LOG
    elif verb == "grep":
        allowed = _GIT_GREP
    options_only = verb in ("branch", "tag", "remote", "stash", "reflog", "config", "worktree", "var")
    operands = []
    valued = False
    for word in rest:
        if word == "--":
            break
        if word.startswith("--"):
            name = word[2:].partition("=")[0]
            if name not in allowed:
                return None
            valued = "=" not in word and name in ("contains", "no-contains", "merged", "no-merged", "sort", "points-at", "format", "get",
                                                  "get-all", "list", "get-regexp", "type")  # fmt: skip
        elif word.startswith("-") and len(word) > 1:
            letters = re.sub(r"(?<=[nULSGMCABLOewmu])[^ ]*$", "", word[1:]) if verb != "branch" else word[1:]
            if not (word[1:].isdigit() or all(letter in allowed for letter in letters)):
                return None
            valued = word in ("-l",)
        else:
            if not valued:
                operands.append(word)
            valued = False
    if options_only and operands and operands[0] not in _LIST_FIRST.get(verb, ()):
        return None
    if verb in ("stash",) and not operands:
        return None
    if verb == "config" and not any(f.partition("=")[0] in ("--get", "--list", "-l", "--get-all", "--get-regexp") for f in flags):
        return None
    if verb in ("tag",) and not flags and rest:
        return None
    return "allow", f"git {verb} only reads"


_CODE_READERS = frozenset(
    "sh bash dash zsh ksh ash fish csh tcsh python python3 perl ruby node php lua deno bun sudo su xargs".split()
)
_FETCHERS = frozenset("curl wget fetch aria2c http https lynx nc ncat".split())


def judge_script(script: Script) -> list[tuple[Decision, str]]:
    """What only the whole script shows."""
    out: list[tuple[Decision, str]] = []
    if script.bomb:
        out.append(("forbidden", "a function that starts itself without end"))

    def name(words: Words) -> frozenset[str]:
        if not words or isinstance(words[0], Dynamic):
            return frozenset()
        return frozenset(families(bare_name(words[0])))

    for pipeline in script.pipelines:
        fetched = [c for c in script.commands if any(n in _FETCHERS for w in c.words if type(w) is str for n in (bare_name(w),))]
        for command in script.commands:
            stage = pipeline.stage(command)
            fed = any(0 <= pipeline.stage(other) < stage for other in fetched)
            runs = name(command.words) & _CODE_READERS or (
                name(command.words) & {"env", "nice", "nohup", "time", "command", "exec"}
                and any(type(w) is str and bare_name(w) in _CODE_READERS for w in command.words)
            )
            if fed and runs:
                out.append(("forbidden", "what is fetched from the network is run"))
    shells = frozenset("sh bash dash zsh ksh ash eval source .".split())
    for command in script.commands:
        if name(command.words) & (shells | {"python", "perl", "ruby", "node"}) and any(
            isinstance(w, Dynamic) and re.search(r"[$<]\(\s*(?:\S*/)?(?:curl|wget)\b|`\s*(?:\S*/)?(?:curl|wget)\b", w)
            for w in command.words[1:]
        ):
            out.append(("forbidden", "what is fetched from the network is run"))
        for redirect in command.redirects:
            if redirect.operator.startswith((">", "&>")) and re.match(
                r"/dev/(sd|nvme|hd|vd|mmcblk|disk|mem|kmem)", redirect.target
            ):
                out.append(("forbidden", f"{redirect.target} is overwritten"))
    return out
