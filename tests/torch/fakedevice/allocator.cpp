/* allocator.cpp - device memory in blocks of powers of two, cut from segments of 2 MiB and more.
 * A freed block goes to the stream that it was allocated on, and is the next that is handed out
 * there; if other streams were recorded, once they have come that far. */
#include "fakegpu.h"

#include <map>
#include <mutex>
#include <vector>

namespace fakegpu
{

namespace
{

constexpr size_t kLeast = 512, kSegment = 2 << 20;

struct Block {
    char *begin;
    size_t bytes;
    c10::Stream home;
    std::vector<c10::Stream> used; /* recorded */
};

struct Awaited {
    Block *block;
    cu_event event;
};

struct Pool {
    std::mutex lock;
    std::map<std::pair<uint64_t, size_t>, std::vector<Block *>> free; /* by stream and size */
    std::map<c10::DeviceIndex, std::pair<char *, size_t>> rest;       /* of the last segment */
    std::vector<Awaited> awaited;
    size_t reused = 0;
};

Pool &pool()
{
    static auto *all = new Pool;

    return *all;
}

size_t rounded(size_t bytes)
{
    size_t size = kLeast;

    while (size < bytes)
        size *= 2;
    return size;
}

/* With the lock held, as those below. */
void put_back(Pool &p, Block *block)
{
    p.free[{block->home.hash(), block->bytes}].push_back(block);
}

void look_at_awaited(Pool &p)
{
    std::vector<Awaited> left;

    for (const Awaited &one : p.awaited) {
        if (driver().event_query(one.event) == CU_E_NOT_READY) {
            left.push_back(one);
            continue;
        }
        driver().event_free(one.event);
        bool last = true;
        for (const Awaited &other : p.awaited)
            last = last && (&other <= &one || other.block != one.block);
        for (const Awaited &other : left)
            last = last && other.block != one.block;
        if (last)
            put_back(p, one.block);
    }
    p.awaited.swap(left);
}

char *cut(Pool &p, c10::DeviceIndex index, size_t bytes)
{
    auto &[begin, left] = p.rest[index];

    if (left < bytes) {
        size_t fresh = std::max(bytes, kSegment);
        cu_ptr at;
        must(driver().mem_alloc(&at, fresh), "cuMemAlloc");
        begin = reinterpret_cast<char *>(at);
        left = fresh;
    }
    char *block = begin;
    begin += bytes;
    left -= bytes;
    return block;
}

void free_block(void *arg)
{
    auto *block = static_cast<Block *>(arg);
    Pool &p = pool();
    std::lock_guard<std::mutex> guard(p.lock);

    if (block->used.empty()) {
        put_back(p, block);
        return;
    }
    for (const c10::Stream &stream : std::exchange(block->used, {})) {
        cu_event event;
        enter(stream.device_index());
        must(driver().event_new(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
        must(driver().event_record(event, native(stream)), "cuEventRecord");
        p.awaited.push_back({block, event});
    }
}

class Caching final : public c10::Allocator
{
  public:
    c10::DataPtr allocate(size_t bytes) override
    {
        c10::DeviceIndex index = current_device();
        c10::Device device(kType, index);

        if (!bytes)
            return {nullptr, nullptr, &nothing, device};
        c10::Stream stream = current_stream(index);
        Pool &p = pool();
        std::lock_guard<std::mutex> guard(p.lock);
        enter(index);
        look_at_awaited(p);
        size_t size = rounded(bytes);
        auto &free = p.free[{stream.hash(), size}];
        if (free.empty()) {
            free.push_back(new Block{cut(p, index, size), size, stream, {}});
            p.reused--;
        }
        p.reused++;
        Block *block = free.back();
        free.pop_back();
        return {block->begin, block, &free_block, device};
    }
    c10::DeleterFnPtr raw_deleter() const override
    {
        return nullptr; /* a block is more than its address */
    }
    void copy_data(void *to, const void *from, std::size_t bytes) const override
    {
        copy_bytes(to, from, bytes, current_device());
    }

  private:
    static void nothing(void *)
    {
    }
};

} // namespace

c10::Allocator *allocator()
{
    static auto *caching = new Caching;

    return caching;
}

void record_stream(const c10::DataPtr &data, const c10::Stream &stream)
{
    auto *block = data.cast_context<Block>(&free_block);
    Pool &p = pool();
    std::lock_guard<std::mutex> guard(p.lock);

    if (block && stream != block->home)
        block->used.push_back(stream);
}

size_t reused()
{
    Pool &p = pool();
    std::lock_guard<std::mutex> guard(p.lock);

    return p.reused;
}

REGISTER_ALLOCATOR(kType, allocator());

} // namespace fakegpu
