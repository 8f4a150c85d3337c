/* cause_text.h - texts of commd by which commctl decides: each stands here once, as the format of
 * its writer and for its reader (client/ctl/words.c, doctor.c). A cause may go on behind it. */
#ifndef COMMD_CAUSE_TEXT_H
#define COMMD_CAUSE_TEXT_H

#define TEXT_GROUP_KICKED  "ended by %s with commctl kick on node %s"
#define TEXT_CLIENT_KICKED "pid %u was disconnected by %s with commctl kick on node %s"
#define TEXT_NODE_LOST     "node %s was lost: "
#define TEXT_COMMD_ENDED   "its commd ended the link"
#define TEXT_COMMD_ANEW    "commd of node %s was restarted"
#define TEXT_GROUP_UNKNOWN                                                                         \
    "node %s does not know this group any more: it had given up other nodes, or its commd was "    \
    "restarted"
#define TEXT_LINK_FAILED   "the link failed"
#define TEXT_CERTIFICATE   "its certificate "      /* behind it: why it counts no more */
#define TEXT_ENGINE_LOST   "the engine of node %s was lost"
#define TEXT_ENGINES_APART "the engines of nodes %s and %s lost each other"

#define TEXT_GPU_UNASKED   "nobody has asked for it yet" /* why commd-gpu is down */

#endif
