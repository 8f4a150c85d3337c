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

#endif
