/* words.c - the words and texts of commd that commctl decides by, as enums. The texts are those of
 * shm/proto/cause_text.h, by which commd writes them. */
#include "client/ctl/words.h"

#include "shm/proto/cause_text.h"
#include "shm/util/encryption.h"
#include "shm/proto/codec.h"

#include <signal.h>
#include <stdio.h>

unsigned read_word(const char *words, const char *word)
{
    size_t len = strlen(word);

    assert(*words);
    for (unsigned place = 1; len; place++, words++) {
        size_t n = strcspn(words, ",");

        if (n == len && !strncmp(words, word, n))
            return place;
        words += n;
        if (!*words)
            break;
    }
    return 0;
}

enum process_end read_process_end(const char *text)
{
    int number;

    if (!*text)
        return END_UNKNOWN;
    if (sscanf(text, "exit code %d", &number) == 1)
        return number ? END_ERROR : END_CLEAN;
    if (sscanf(text, "signal %d", &number) != 1)
        return END_CRASHED;
    if (number == SIGKILL)
        return END_KILLED;
    return number == SIGTERM || number == SIGINT || number == SIGHUP ? END_TOLD : END_CRASHED;
}

enum cause read_cause(const char *word)
{
    unsigned cause = CAUSE_COUNT;

    if (!*word)
        return CAUSE_NONE;
    while (--cause && strcmp(cause_name(cause), word))
        continue;
    return cause ? cause : CAUSE_INTERNAL;
}

/* Does @text begin as @format does? What stands in the first two holes of it goes to @names. */
static bool scan_text(const char *text, const char *format, char names[2][MSG_NAME_MAX])
{
    unsigned n = 0;

    for (const char *hole; (hole = strchr(format, '%')); n++) {
        char behind[MSG_NAME_MAX];
        const char *end;

        if (strncmp(text, format, (size_t)(hole - format)))
            return false;
        text += hole - format;
        format = hole + strlen("%s");
        snprintf(behind, sizeof(behind), "%.*s", (int)strcspn(format, "%"), format);
        end = *behind ? strstr(text, behind) : text + strcspn(text, ":");
        if (!end || end == text || end - text >= MSG_NAME_MAX)
            return false;
        if (n < 2)
            snprintf(names[n], MSG_NAME_MAX, "%.*s", (int)(end - text), text);
        text = end;
    }
    return starts_with(text, format);
}

enum cause_told read_cause_text(enum cause cause, const char *text, char names[2][MSG_NAME_MAX])
{
    static const struct {
        enum cause cause;
        enum cause_told told;
        const char *format;
    } texts[] = {
        {CAUSE_ABORTED, TOLD_KICK, TEXT_GROUP_KICKED},
        {CAUSE_ABORTED, TOLD_KICK, TEXT_CLIENT_KICKED},
        {CAUSE_NODE_LOST, TOLD_COMMD_ENDED, TEXT_NODE_LOST TEXT_COMMD_ENDED},
        {CAUSE_NODE_LOST, TOLD_COMMD_ENDED, TEXT_COMMD_ANEW},
        {CAUSE_NODE_LOST, TOLD_COMMD_ENDED, TEXT_COMMD_STOPS},
        {CAUSE_NODE_LOST, TOLD_LINK_FAILED, TEXT_NODE_LOST TEXT_LINK_FAILED},
        {CAUSE_NODE_LOST, TOLD_CERTIFICATE, TEXT_NODE_LOST TEXT_CERTIFICATE},
        {CAUSE_NODE_LOST, TOLD_REFUSES, TEXT_NODE_LOST TEXT_REFUSES_THAT},
        {CAUSE_NODE_LOST, TOLD_NODE_LOST, TEXT_NODE_LOST},
        {CAUSE_NODE_LOST, TOLD_FORGED, TEXT_ENGINES_APART ": " TEXT_FORGED},
        {CAUSE_NODE_LOST, TOLD_ENGINES_APART, TEXT_ENGINES_APART},
        {CAUSE_ENGINE_LOST, TOLD_FORGED, TEXT_ENGINES_APART ": " TEXT_FORGED},
        {CAUSE_ENGINE_LOST, TOLD_ENGINES_APART, TEXT_ENGINES_APART},
        {CAUSE_ENGINE_LOST, TOLD_ENGINE_LOST, TEXT_ENGINE_LOST},
    };

    assert(cause < CAUSE_COUNT);
    for (unsigned i = 0; i < ARRAY_LEN(texts); i++)
        if (texts[i].cause == cause && scan_text(text, texts[i].format, names))
            return texts[i].told;
    names[0][0] = names[1][0] = 0;
    return TOLD_NOTHING;
}
