/* launch.h - what commd and the launcher of its engines, or of commd-gpu, say to each other, see
 * transport/process/launcher.c.
 *
 * A connection (SOCK_SEQPACKET) is one engine's life. commd sends the arguments of the engine, each
 * ended by NUL, with descriptors: its control socket; its end of the line by which the next commd
 * finds it (transport/process/control.c); and, if the engine before had one, the socket on which it
 * listens. Any later packet means: kill the engine. The launcher answers
 * with a struct launch_answer when the engine has started, has not, or has ended. Whichever side
 * closes, the engine ends. */
#ifndef COMMD_LAUNCH_H
#define COMMD_LAUNCH_H

#include <stdint.h>
#include <string.h>

#include "shm/util/hash.h"

enum { LAUNCH_ARGS_BYTES = 4096, LAUNCH_ARGS = 32, LAUNCH_FDS = 3 };
enum launch_kind {
    LAUNCH_STARTED = 1, /* value: its pid; code: the user that it runs as */
    LAUNCH_FAILED,      /* value: errno */
    LAUNCH_EXITED,      /* code, value: as si_code and si_status of waitid(2) */
};

struct launch_answer {
    uint32_t kind;
    int32_t code, value;
};

/* A number for the arguments of a program, by which commd knows whether one that runs has the
 * settings of now (each hashed with its NUL). Begin with LAUNCH_NO_SETTINGS, end before
 * LAUNCH_LOG, which says how much is logged; it is never 0. Its LAUNCH_SHARED bits are of those
 * options that the engines of all nodes have to have alike. */
#define LAUNCH_LOG         "--log"
#define LAUNCH_NO_SETTINGS HASH_BEGIN
#define LAUNCH_SHARED      UINT64_C(0xffff)
static inline uint64_t launch_hash(uint64_t before, const char *word)
{
    return hash_bytes(before, word, strlen(word) + 1);
}
/* @option: the word before it, or "". */
static inline uint64_t launch_settings(uint64_t before, const char *option, const char *word)
{
    uint64_t shared = before & LAUNCH_SHARED, all = launch_hash(before | LAUNCH_SHARED, word);

    if (!strcmp(option, "--fabric") || !strcmp(option, "--tls") ||
        !strcmp(option, "--encryption") || !strcmp(option, "--trusted"))
        shared = launch_hash(shared, word) & LAUNCH_SHARED;
    all = (all & ~LAUNCH_SHARED) | shared;
    return all ? all : 1;
}
static inline uint64_t launch_settings_of(int argc, char *const argv[])
{
    uint64_t settings = LAUNCH_NO_SETTINGS;

    for (int i = 1; i < argc && strcmp(argv[i], LAUNCH_LOG); i++)
        settings = launch_settings(settings, argv[i - 1], argv[i]);
    return settings;
}

#endif
