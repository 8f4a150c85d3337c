/* cause_text.h - texts of commd by which commctl decides: each stands here once, as the format of
 * its writer and for its reader (client/ctl/words.c, doctor.c). A cause may go on behind it. */
#ifndef COMMD_CAUSE_TEXT_H
#define COMMD_CAUSE_TEXT_H

#define TEXT_GROUP_KICKED  "ended by %s with commctl kick on node %s"
#define TEXT_CLIENT_KICKED "pid %u was disconnected by %s with commctl kick on node %s"
#define TEXT_NODE_LOST     "node %s was lost: "
#define TEXT_COMMD_ENDED   "its commd ended the link"
#define TEXT_COMMD_STOPS   "commd on node %s is stopping"
#define TEXT_SILENT        "silent for " /* behind it: how long */
#define TEXT_COMMD_ANEW    "commd of node %s was restarted"
#define TEXT_GROUP_UNKNOWN                                                                         \
    "node %s does not know this group any more: it had given up other nodes, or its commd was "    \
    "restarted"
#define TEXT_GROUP_PASSED                                                                          \
    "node %s does not know this group any more: it has gone on as epoch %llu, without node %s"
#define TEXT_LINK_FAILED "the link failed"
#define TEXT_CERTIFICATE "its certificate" /* behind it: why it counts no more */
/* Behind it a colon, and why. The first is what a node says of itself, in its own log. */
#define TEXT_OURS_REFUSED  "it refuses our certificate"
#define TEXT_REFUSES_THAT  "it refuses the certificate of node %s"
#define TEXT_ENGINE_LOST   "the engine of node %s was lost"
#define TEXT_ENGINES_APART "the engines of nodes %s and %s lost each other"

/* Of the files of the configuration, its keys and certificates, as they lie there. */
#define TEXT_FILE_WRONG     "what is in force goes on, for its file is wrong by now: "
#define TEXT_PROOFS_WRONG   "what is in force goes on, for a reload or a start would be refused: "
#define TEXT_PROOFS_NEWER   "is newer than the certificate in use, which expires"
#define TEXT_LIST_OLD       "is older than it may become: revoked certificates may be missing"
#define TEXT_RELOAD_REFUSED "the last reload was refused "

#define TEXT_GPU_UNASKED    "nobody has asked for it yet" /* why commd-gpu is down */

#endif
