/* Linked into the launcher for its run under AddressSanitizer: its environment is the command's, so options cannot come
 * from there. Leaks do not count, since every process of it ends by _exit() or exec. */
const char *__asan_default_options(void) { return "detect_leaks=0:abort_on_error=0:exitcode=99"; }
const char *__ubsan_default_options(void) { return "print_stacktrace=1:exitcode=99"; }
