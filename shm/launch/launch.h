/* launch.h - what commd and the launcher of its engines, or of commd-gpu, say to each other, see
 * transport/process/launcher.c.
 *
 * A connection (SOCK_SEQPACKET) is one engine's life. commd sends the arguments of the engine, each
 * ended by NUL, with the descriptor of its control socket, and one where it shall listen, if the
 * engine before had one; later any packet, which means: kill it.
 * The launcher answers with a struct launch_answer whenever something became of it. Whichever side
 * closes, the engine ends. */
#ifndef COMMD_LAUNCH_H
#define COMMD_LAUNCH_H

#include <stdint.h>

enum { LAUNCH_ARGS_BYTES = 4096, LAUNCH_ARGS = 32 };
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
