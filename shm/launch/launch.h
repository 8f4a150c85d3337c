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
 * settings of now (FNV-1a, with the NUL of each). Begin with LAUNCH_NO_SETTINGS, end before
 * LAUNCH_LOG, which says how much is logged; it is never 0. */
#define LAUNCH_LOG         "--log"
#define LAUNCH_NO_SETTINGS UINT64_C(0xcbf29ce484222325)
static inline uint64_t launch_settings(uint64_t before, const char *word)
{
    for (size_t i = 0, n = strlen(word) + 1; i < n; i++)
        before = (before ^ (uint8_t)word[i]) * UINT64_C(0x100000001b3);
    return before ? before : 1;
}
static inline uint64_t launch_settings_of(int argc, char *const argv[])
{
    uint64_t settings = LAUNCH_NO_SETTINGS;

    for (int i = 1; i < argc && strcmp(argv[i], LAUNCH_LOG); i++)
        settings = launch_settings(settings, argv[i]);
    return settings;
}

#endif
