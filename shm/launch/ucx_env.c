/* ucx_env.c - the environment of a process that links UCX.
 *
 * libucs reads these in its constructor, before main(): setting them in the process itself
 * is too late, so whoever starts the engine (engine_exec.c) puts them into its environment. It must
 * also remove every other UCX_* variable: a site-wide UCX_TLS meant for MPI jobs would
 * otherwise reach our workers wherever fabric_ucx.c does not set the same key.
 *
 *   UCX_HANDLE_ERRORS=none          else UCX installs handlers for SIGSEGV, SIGBUS, SIGFPE and
 *                                   SIGILL that print a backtrace and may wait for a debugger
 *   UCX_MEM_EVENTS=n                else it patches mmap/munmap/brk of the process; needed only
 *                                   by the registration cache, which TCP does not have
 *   UCX_VFS_ENABLE=n                else a thread of its own looks for a FUSE daemon
 *   UCX_WARN_UNUSED_ENV_VARS=n      else older versions warn about variables of newer ones
 *
 * Not UCX_LOG_LEVEL: fabric_ucx_init.c listens to UCX's complaints while it opens (how else
 * would it know that a port range was ignored?) and keeps them from stderr by itself. */
#include "shm/launch/engine_exec.h"

#include <stddef.h>

const char *const ucx_env[] = {
    "UCX_HANDLE_ERRORS=none",
    "UCX_MEM_EVENTS=n",
    "UCX_VFS_ENABLE=n",
    "UCX_WARN_UNUSED_ENV_VARS=n",
    NULL,
};
