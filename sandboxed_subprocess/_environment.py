"""What of an environment a command may see, and the markers that tell it where it is.

Always rebuilt from nothing. A variable is dropped when its name or its value looks like a secret, like a way to run
code in somebody else's program, or like a door to an agent outside. The report lists names, never values.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping

from ._policy import Environment

CORE = frozenset(
    """PATH HOME USER LOGNAME SHELL TERM PWD EDITOR VISUAL PAGER LANG LANGUAGE TZ TZDIR TMPDIR TEMP TMP COLORTERM CLICOLOR
    CLICOLOR_FORCE NO_COLOR FORCE_COLOR LS_COLORS COLUMNS LINES CARGO_HOME RUSTUP_HOME RUSTUP_TOOLCHAIN GOPATH GOROOT
    GOCACHE GOMODCACHE JAVA_HOME ANDROID_HOME MAVEN_HOME GRADLE_HOME VIRTUAL_ENV CONDA_PREFIX PYENV_ROOT PYENV_VERSION
    NVM_DIR NVM_BIN VOLTA_HOME RBENV_ROOT SDKROOT CI SYSTEMROOT SYSTEMDRIVE WINDIR COMSPEC PATHEXT USERPROFILE
    APPDATA LOCALAPPDATA PROGRAMDATA PROGRAMFILES NUMBER_OF_PROCESSORS PROCESSOR_ARCHITECTURE""".split()
)
_CORE_PREFIXES = ("LC_", "XDG_")

# Whole words of a name: split at anything but letters and digits, and where the case changes.
# Patterns are compiled when they are first needed (and then kept by `re`): at the import they would cost more than all
# else here.
_WORDS = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+"
_SECRET_WORDS = frozenset(
    """key keys apikey token tokens secret secrets password passwords passwd passphrase passcode pwd credential
    credentials cred creds auth authorization bearer cookie cookies pat dsn jwt netrc htpasswd""".split()
)
# Words that are written together: PGPASSWORD, GITHUBTOKEN, AWSSECRETKEY.
_SECRET_ENDINGS = (
    "password",
    "passwd",
    "passphrase",
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
    "secret",
    "token",
    "tokens",
    "credentials",
)
_NOT_SECRET = frozenset({"PWD", "OLDPWD", "XAUTHLOCALHOSTNAME"})

_DROPPED_NAMES = frozenset(
    """DATABASE_URL DB_URL MYSQL_PWD PGPASSFILE PGSERVICEFILE REDIS_URL REDISCLI_AUTH MONGODB_URI MONGO_URL AMQP_URL
    SENTRY_DSN KUBECONFIG NETRC BOTO_CONFIG VAULT_ADDR NPM_CONFIG_USERCONFIG PIP_CONFIG_FILE TWINE_USERNAME

    SSH_AUTH_SOCK SSH_AGENT_PID SSH_ASKPASS SSH_CONNECTION SSH_CLIENT SSH_TTY GPG_AGENT_INFO GPG_TTY GNUPGHOME
    GNOME_KEYRING_CONTROL XAUTHORITY SESSION_MANAGER TMUX TMUX_PANE STY DISPLAY WAYLAND_DISPLAY WAYLAND_SOCKET I3SOCK
    SWAYSOCK NOTIFY_SOCKET LISTEN_FDS LISTEN_PID JOURNAL_STREAM PULSE_SERVER KITTY_LISTEN_ON WEZTERM_UNIX_SOCKET
    SUDO_ASKPASS BUILDKIT_HOST CONTAINER_HOST

    BASH_ENV ENV SHELLOPTS BASHOPTS PS4 PROMPT_COMMAND CDPATH GLOBIGNORE FPATH ZDOTDIR INPUTRC FIGNORE EXECIGNORE
    GLIBC_TUNABLES GCONV_PATH LOCPATH NLSPATH HOSTALIASES RESOLV_HOST_CONF RES_OPTIONS LOCALDOMAIN MALLOC_TRACE
    GETCONF_DIR OPENSSL_CONF OPENSSL_MODULES OPENSSL_ENGINES SSLKEYLOGFILE QT_PLUGIN_PATH GTK_MODULES GTK_PATH
    NODE_OPTIONS NODE_PATH NODE_REPL_EXTERNAL_MODULE NODE_V8_COVERAGE ELECTRON_RUN_AS_NODE
    PERL5OPT PERL5LIB PERLLIB PERL5DB PERLIO_DEBUG RUBYOPT RUBYLIB LUA_INIT LUA_PATH LUA_CPATH PHPRC PHP_INI_SCAN_DIR
    R_PROFILE R_PROFILE_USER R_ENVIRON R_ENVIRON_USER AWKPATH AWKLIBPATH TCLLIBPATH GUILE_LOAD_PATH ERL_FLAGS ERL_AFLAGS
    JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS CLASSPATH MAVEN_OPTS GRADLE_OPTS SBT_OPTS
    LESSOPEN LESSCLOSE LESSEDIT LESSKEY LESSKEYIN MANPAGER MANOPT BROWSER RIPGREP_CONFIG_PATH WGETRC CURL_HOME
    ACKRC TIGRC_USER VIMINIT GVIMINIT EXINIT NVIM_LISTEN_ADDRESS FZF_DEFAULT_COMMAND FZF_DEFAULT_OPTS BAT_PAGER DELTA_PAGER
    MAKEFILES MAKEFLAGS MFLAGS GNUMAKEFLAGS RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER RUSTC RUSTDOC GOFLAGS CARGO_BUILD_RUSTC_WRAPPER
    CMAKE_TOOLCHAIN_FILE CCACHE_PREFIX TAR_OPTIONS GREP_OPTIONS UNZIP ZIPOPT POSIXLY_CORRECT EMAIL_EDITOR RSYNC_RSH CVS_RSH
    NPM_CONFIG_SCRIPT_SHELL NPM_CONFIG_NODE_OPTIONS NPM_CONFIG_SHELL NPM_CONFIG_EDITOR NPM_CONFIG_GIT DOTNET_STARTUP_HOOKS
    CORECLR_PROFILER CORECLR_PROFILER_PATH COR_PROFILER COR_PROFILER_PATH DOTNET_ADDITIONAL_DEPS
    ASPNETCORE_HOSTINGSTARTUPASSEMBLIES
    HGRCPATH HGEDITOR HGMERGE SVN_SSH SVN_EDITOR PYTEST_ADDOPTS PYTEST_PLUGINS COVERAGE_PROCESS_START TOX_TESTENV_PASSENV
    IFS OLDPWD""".split()
) - {"OLDPWD", "POSIXLY_CORRECT"}

_DROPPED_PREFIXES = (
    "AWS_", "AZURE_", "GOOGLE_", "GCP_", "GCLOUD_", "CLOUDSDK_", "DBUS_", "LD_", "DYLD_", "BASH_FUNC_", "PYTHON", "GIT_",
    "DOCKER_", "VSCODE_IPC_", "VSCODE_GIT_", "NIX_LD",
)  # fmt: skip
_KEPT_DESPITE_PREFIX = frozenset(
    """PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE PYTHONHASHSEED PYTHONIOENCODING PYTHONUTF8 PYTHONFAULTHANDLER PYTHONDEVMODE
    PYTHONTRACEMALLOC PYTHONASYNCIODEBUG PYTHONOPTIMIZE PYTHONSAFEPATH PYTHONNOUSERSITE PYTHONCOERCECLOCALE PYTHONMALLOC
    PYTHON_COLORS PYTHON_GIL PYTHON_VERSION GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_AUTHOR_DATE GIT_COMMITTER_NAME
    GIT_COMMITTER_EMAIL GIT_COMMITTER_DATE GIT_TERMINAL_PROMPT GIT_OPTIONAL_LOCKS GIT_CEILING_DIRECTORIES
    GIT_SSL_CAINFO GIT_SSL_CAPATH AWS_CA_BUNDLE CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE""".split()
)
# These name a program and its options; anything else in them is a script waiting to be run.
_PROGRAM_NAMES = frozenset({"EDITOR", "VISUAL", "PAGER"})
_PROGRAM = r"[\w./+-]+( -{1,2}[\w=-]+)*"


@functools.lru_cache(1)
def _secret_value() -> re.Pattern[str]:
    return re.compile(
        r"""-----BEGIN[A-Z ]*PRIVATE\ KEY
        | \beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.                                            # JSON web token
        | \bgh[pousr]_\w{20,} | \bgithub_pat_\w{20,} | \bglpat-[\w-]{20,}
        | \bsk-[\w-]{20,} | \b[rs]k_(live|test)_\w{16,} | \bxox[abeprs]-[\w-]{10,}
        | \b(AKIA|ASIA)[0-9A-Z]{16}\b | \bAIza[\w-]{35} | \bya29\.[\w-]{20,}
        | \bnpm_\w{36} | \bpypi-AgEI[\w-]{20,} | \bhf_[A-Za-z]{30,} | \bSG\.[\w-]{16,}\.[\w-]{16,}
        | \bdop_v1_[0-9a-f]{40,} | \bshpat_[0-9a-f]{32} | \bAGE-SECRET-KEY-1\w{20,} | \bhvs\.\w{20,}
        | \w://[^/\s:@]*:[^/\s@]+@                                                  # URL with a password
        """,
        re.VERBOSE,
    )


@functools.lru_cache(4096)
def looks_innocent(name: str, value: str) -> bool:
    """Whether the "filtered" mode lets an inherited variable through."""
    upper = name.upper()
    if name in _NOT_SECRET:
        return True
    if upper in _KEPT_DESPITE_PREFIX:
        return not _secret_value().search(value)
    if upper in _DROPPED_NAMES or upper.startswith(_DROPPED_PREFIXES) or upper.endswith("_PROXY") or upper == "PROXY":
        return False
    for word in re.findall(_WORDS, name):
        word = word.lower()
        if word in _SECRET_WORDS or word.endswith(_SECRET_ENDINGS):
            return False
    # bash exports functions under any name, in a value that begins like this (CVE-2014-6271).
    if value.startswith("() {") or _secret_value().search(value):
        return False
    return upper not in _PROGRAM_NAMES or re.fullmatch(_PROGRAM, value) is not None


def is_core(name: str) -> bool:
    upper = name.upper()
    return upper in CORE or upper.startswith(_CORE_PREFIXES)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(name == p or (p.endswith("*") and name.startswith(p[:-1])) for p in patterns)


def _visible(spec: Environment, name: str, value: str) -> bool:
    if spec.inherit == "all" or _matches(name, spec.include):
        return True
    if spec.inherit == "none" or (spec.inherit == "core" and not is_core(name)):
        return False
    return looks_innocent(name, value)


def filter_environment(
    spec: Environment, env: Mapping[str, str] | None, caller: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What the command sees of `env` (None: of the caller's own), and the names that were dropped.

    A value in `env` that equals the caller's own counts as inherited, since `env={**os.environ, "X": "1"}` is how
    people add a variable. A new value is intent, and stays.
    """
    source = caller if env is None else env
    out: dict[str, str] = {}
    dropped: list[str] = []
    for name, value in source.items():
        inherited = env is None or caller.get(name) == value
        if _matches(name, spec.exclude) or (inherited and not _visible(spec, name, value)):
            dropped.append(name)
        else:
            out[name] = value
    out.update(dict(spec.set))
    return out, tuple(sorted(dropped))


def markers(spec: Environment, kind: str, network_disabled: bool, roots: Iterable[str]) -> dict[str, str]:
    """The variables that tell a command that, and how, it is sandboxed."""
    out: dict[str, str] = {}
    for prefix in ("SANDBOXED_SUBPROCESS", *spec.marker_prefixes):
        if prefix == "CODEX":
            out["CODEX_SANDBOX"] = "seatbelt" if kind == "MacosSeatbelt" else "landlock"
            if network_disabled:
                out["CODEX_SANDBOX_NETWORK_DISABLED"] = "1"
            continue
        out[f"{prefix}_ACTIVE"] = "1"
        if network_disabled:
            out[f"{prefix}_NETWORK_DISABLED"] = "1"
        out[f"{prefix}_TYPE"] = kind
        out[f"{prefix}_WRITABLE_ROOTS"] = os.pathsep.join(roots)
    return out
