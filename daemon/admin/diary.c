/* diary.c - a ring of DIARY_MAX entries of bounded size, which never grows.
 *
 * An entry is for everybody, or for one uid. When there is no room, the payer with most entries
 * loses its oldest one. So a user pushes out entries of others only until all have equal shares.
 * Entries for everybody keep half of the room.
 *
 * The entries outlive commd (daemon/takeover.c). Added again in their order they push out what they
 * pushed out before, or of two payers with equal shares the other one's. */
#include "daemon/admin/diary.h"

void diary_init(struct diary *diary)
{
    memset(diary, 0, sizeof(*diary));
    TAILQ_INIT(&diary->kept);
    TAILQ_INIT(&diary->free);
    for (unsigned i = 0; i < DIARY_MAX; i++)
        TAILQ_INSERT_TAIL(&diary->free, &diary->entries[i], entry);
}

/* The owner @whose in @of. If there is none: NULL, or with @make a free one. A free one always
 * exists, because there are more owners than entries. */
static struct diary_owner *owner_of(const struct diary_owner *of, int64_t whose, bool make)
{
    struct diary_owner *owners = (struct diary_owner *)of, *room = NULL;

    for (unsigned i = 0; i <= DIARY_MAX; i++) {
        if (owners[i].kept && owners[i].whose == whose)
            return &owners[i];
        if (!owners[i].kept && !room)
            room = &owners[i];
    }
    if (!make)
        return NULL;
    *room = (struct diary_owner){.whose = whose};
    return room;
}

/* The payer that loses its oldest entry, so that @payer gets a new one. */
static struct diary_owner *loser(struct diary *diary, int64_t payer)
{
    struct diary_owner *most = NULL, *node = owner_of(diary->payers, DIARY_EVERYBODY, false);

    if (node && node->kept + (payer == DIARY_EVERYBODY) > DIARY_NODE)
        return node;
    for (unsigned i = 0; i < ARRAY_LEN(diary->payers); i++) {
        struct diary_owner *owner = &diary->payers[i];

        if (owner != node && owner->kept && (!most || owner->kept > most->kept))
            most = owner;
    }
    return most ? most : node;
}

static uint64_t forget_one(struct diary *diary, int64_t payer)
{
    struct diary_owner *owner = loser(diary, payer);
    struct diary_entry *entry;

    TAILQ_FOREACH(entry, &diary->kept, entry)
        if (entry->payer == owner->whose)
            break;
    assert(entry && owner->kept);
    owner->kept--;
    owner_of(diary->seers, entry->whose, false)->kept--;
    TAILQ_REMOVE(&diary->kept, entry, entry);
    TAILQ_INSERT_TAIL(&diary->free, entry, entry);
    return entry->number;
}

static void copy_text(char *to, size_t cap, const char *from)
{
    size_t len = strnlen(from, cap - 1);

    memcpy(to, from, len);
    to[len] = 0;
}

uint64_t diary_add(struct diary *diary, const char *what, int64_t whose, int64_t payer,
                   uint64_t wall_ms, const char *text)
{
    uint64_t pushed = TAILQ_EMPTY(&diary->free) ? forget_one(diary, payer) : 0;
    struct diary_owner *seer = owner_of(diary->seers, whose, true);
    struct diary_entry *entry = TAILQ_FIRST(&diary->free);

    assert(*what && whose >= DIARY_EVERYBODY && payer >= DIARY_EVERYBODY);
    seer->kept++;
    owner_of(diary->payers, payer, true)->kept++;
    TAILQ_REMOVE(&diary->free, entry, entry);
    TAILQ_INSERT_TAIL(&diary->kept, entry, entry);
    entry->number = ++diary->last;
    entry->wall_ms = wall_ms;
    entry->whose = whose;
    entry->payer = payer;
    entry->total = ++seer->total;
    copy_text(entry->what, sizeof(entry->what), what);
    copy_text(entry->text, sizeof(entry->text), text);
    return pushed;
}

bool diary_restore(struct diary *diary, const struct diary_entry *from, uint64_t *ret_pushed)
{
    if (from->number <= diary->last || from->number > INT64_MAX || !from->total ||
        from->total > from->number || from->whose < DIARY_EVERYBODY || from->whose > UINT32_MAX ||
        from->payer < DIARY_EVERYBODY || from->payer > UINT32_MAX || !*from->what)
        return false;
    diary->last = from->number - 1;
    *ret_pushed = diary_add(diary, from->what, from->whose, from->payer, from->wall_ms, from->text);
    TAILQ_LAST(&diary->kept, diary_list)->total = from->total;
    owner_of(diary->seers, from->whose, false)->total = from->total;
    return true;
}

const struct diary_entry *diary_next(const struct diary *diary, uint64_t since, const uint32_t *uid)
{
    const struct diary_entry *entry;

    TAILQ_FOREACH(entry, &diary->kept, entry)
        if (entry->number > since &&
            (!uid || entry->whose == DIARY_EVERYBODY || entry->whose == (int64_t)*uid))
            return entry;
    return NULL;
}

uint64_t diary_total(const struct diary *diary, const uint32_t *uid)
{
    const struct diary_owner *node, *own;

    if (!uid)
        return diary->last;
    node = owner_of(diary->seers, DIARY_EVERYBODY, false);
    own = owner_of(diary->seers, (int64_t)*uid, false);
    return (node ? node->total : 0) + (own ? own->total : 0);
}
