/* recorder.cpp - the last collectives of this process, in the form of torch's flight recorder.
 *
 * torch's own recorder takes nothing from a backend outside of its source tree: its instances are
 * hidden symbols of libtorch_cpu, so FlightRecorder.hpp would give us another one, which nobody
 * reads. This is one of ours. It has TORCH_FR_BUFFER_SIZE places (2000; 0: off) and writes the
 * format 2.10 of torch's dumps, which torchfrtrace and the page of torch.distributed.debug read.
 * torch's analyser refuses operations of a backend that it does not know, so they are "gloo:..."
 * here; who reads it finds out by "backend".
 *
 * Recorded is what has a number in its group: not send, recv, and the batch that stands for its
 * parts. (The analyser expects all ranks of the group in everything that is not coalesced.) Frames
 * of the caller's stack are not recorded: they would take the GIL, and more time than a small
 * operation.
 *
 * On a GPU an operation is "scheduled" until it is known to have ended: that its stream has come to
 * it nobody can tell without a wait, or a thread that polls.
 *
 * A record is begun by who calls and ended by who completes, which may be the library's thread. The
 * lock is held for a copy of a few hundred bytes; a dump copies the records and works on the copy.
 */
#include "recorder.h"

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <mutex>

#include <ATen/core/ivalue.h>
#include <c10/util/Logging.h>
#include <c10/util/SmallVector.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/version.h>

#include "group.h"
#include "plan.h"

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 13)
#include <torch/csrc/distributed/c10d/control_plane/Handlers.hpp>
#define COMMD_HAVE_HANDLERS 1
#endif

namespace commd
{

namespace
{

constexpr const char *kFormat = "2.10";
constexpr size_t kPlaces = 2000;

using Dict = c10::Dict<c10::IValue, c10::IValue>;
using List = c10::List<c10::IValue>;

Dict new_dict()
{
    return Dict(c10::AnyType::get(), c10::AnyType::get());
}

List new_list()
{
    return List(c10::AnyType::get());
}

int64_t wall_ns()
{
    using namespace std::chrono;
    return duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
}

} // namespace

/* Tensors, as the recorder keeps them. */
struct Shapes {
    c10::SmallVector<int64_t, 8> sizes; /* of all, one after the other */
    c10::SmallVector<uint8_t, 4> dims;  /* of each */
    c10::SmallVector<at::ScalarType, 4> dtypes;

    void add(at::IntArrayRef shape, at::ScalarType dtype)
    {
        sizes.append(shape.begin(), shape.end());
        dims.push_back(static_cast<uint8_t>(shape.size()));
        dtypes.push_back(dtype);
    }
    void set(const std::vector<at::Tensor> &tensors, bool joined);
    List shapes() const;
    List types() const;
};

static bool same_sizes(const std::vector<at::Tensor> &tensors)
{
    for (const at::Tensor &tensor : tensors) {
        if (tensor.sizes() != tensors[0].sizes())
            return false;
    }
    return true;
}

/* @joined: they are the blocks of one operation, one of each rank; NCCL and gloo record them as
 * the tensor that they would be. */
void Shapes::set(const std::vector<at::Tensor> &tensors, bool joined)
{
    sizes.clear();
    dims.clear();
    dtypes.clear();
    if (!joined || tensors.size() < 2) {
        for (const at::Tensor &tensor : tensors)
            add(tensor.sizes(), tensor.scalar_type());
        return;
    }
    c10::SmallVector<int64_t, 6> shape;
    if (same_sizes(tensors)) {
        shape.push_back(static_cast<int64_t>(tensors.size()));
        shape.append(tensors[0].sizes().begin(), tensors[0].sizes().end());
    } else {
        shape.push_back(0);
        for (const at::Tensor &tensor : tensors)
            shape[0] += tensor.numel();
    }
    add(shape, tensors[0].scalar_type());
}

List Shapes::shapes() const
{
    List all = new_list();
    size_t next = 0;

    for (uint8_t n : dims) {
        List one = new_list();
        for (uint8_t i = 0; i < n; i++)
            one.push_back(c10::IValue(sizes[next++]));
        all.push_back(c10::IValue(one));
    }
    return all;
}

List Shapes::types() const
{
    List all = new_list();

    for (at::ScalarType dtype : dtypes)
        all.push_back(c10::IValue(std::string(c10::toString(dtype))));
    return all;
}

namespace
{

bool made_of_blocks(c10d::OpType type)
{
    switch (type) {
    case c10d::OpType::ALLGATHER:
    case c10d::OpType::GATHER:
    case c10d::OpType::SCATTER:
    case c10d::OpType::REDUCE_SCATTER:
    case c10d::OpType::ALLTOALL:
        return true;
    default:
        return false;
    }
}

/* What the analyser calls it: as our titles do, apart from what it tells apart and they do not. */
const char *name_of(const Plan &plan)
{
    switch (plan.type) {
    case c10d::OpType::ALLREDUCE:
        return "all_reduce"; /* torch.ops.commd has no title */
    case c10d::OpType::ALLREDUCE_COALESCED:
        return "allreduce_coalesced";
    case c10d::OpType::ALLGATHER:
        return same_sizes(plan.outputs) ? "all_gather" : "all_gather_v";
    case c10d::OpType::REDUCE_SCATTER:
        return same_sizes(plan.inputs) ? "reduce_scatter" : "reduce_scatter_v";
    case c10d::OpType::ALLGATHER_COALESCED:
        return "ALLGATHER_coalesced";
    case c10d::OpType::COALESCED:
        return plan.name; /* all_gather_into_tensor_coalesced and its like */
    default:
        return plan.title + strlen("commd:");
    }
}

std::string list_of(const std::vector<int64_t> &ranks)
{
    return "[" + c10::Join(", ", ranks) + "]";
}

/* ---- JSON -------------------------------------------------------------------------------- */

void put_text(std::string &out, const std::string &text)
{
    out += '"';
    for (char c : text) {
        char code[8];
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned>(c));
            out += code;
        } else {
            out += c;
        }
    }
    out += '"';
}

void put(std::string &out, const c10::IValue &value);

template <class Values> void put_all(std::string &out, const Values &values)
{
    const char *before = "";

    out += '[';
    for (const c10::IValue &value : values) {
        out += before;
        put(out, value);
        before = ",";
    }
    out += ']';
}

void put_dict(std::string &out, const Dict &dict)
{
    const char *before = "";

    out += '{';
    for (const auto &item : dict) {
        out += before;
        put_text(out, item.key().toStringRef());
        out += ':';
        put(out, item.value());
        before = ",";
    }
    out += '}';
}

void put(std::string &out, const c10::IValue &value)
{
    if (value.isString())
        put_text(out, value.toStringRef());
    else if (value.isBool())
        out += value.toBool() ? "true" : "false";
    else if (value.isInt())
        out += std::to_string(value.toInt());
    else if (value.isDouble())
        out += std::to_string(value.toDouble());
    else if (value.isTuple())
        put_all(out, value.toTupleRef().elements());
    else if (value.isList())
        put_all(out, value.toListRef());
    else if (value.isGenericDict())
        put_dict(out, value.toGenericDict());
    else
        out += '0'; /* no time, as torch writes it */
}

} // namespace

/* ---- the recorder ---------------------------------------------------------------------------- */

class Recorder
{
  public:
    /* A forked process has its own: the other's lock may have been held at the fork. */
    static Recorder &get();

    RecordId begin(const std::shared_ptr<RecordedGroup> &group, const Plan &plan, uint64_t sequence,
                   bool started);
    void started(RecordId id);
    void end(RecordId id, const char *error);
    c10::IValue dump(bool only_active);
    void describe(RecordedGroup &group, const std::string &description)
    {
        std::lock_guard<std::mutex> guard(lock_);
        group.description_ = description;
        group.described_.store(true, std::memory_order_release);
    }

    std::tuple<std::string, std::string> names(const RecordedGroup &group)
    {
        std::lock_guard<std::mutex> guard(lock_);
        return {group.name_, group.description_};
    }

  private:
    struct Record {
        RecordId id = 0;
        std::shared_ptr<RecordedGroup> group;
        const char *name = nullptr;
        uint64_t sequence = 0;
        int64_t timeout_ms = 0;
        int64_t created = 0, begun = 0, ended = 0; /* wall clock, ns; 0: not yet */
        bool failed = false;
        std::string error;
        Shapes inputs, outputs;
        int64_t bytes = 0; /* of the inputs */
        c10::Device device{c10::kCPU};
    };

    Recorder();
    Record *find(RecordId id)
    {
        if (!id || records_.empty())
            return nullptr;
        Record &record = records_[id % records_.size()];
        return record.id == id ? &record : nullptr;
    }
    static Dict dump_record(const Record &record);
    static Dict dump_group(const RecordedGroup &group);
    static Dict dump_status(const RecordedGroup &group);
    void write_file(int64_t rank);

    const unsigned generation_ = generation();
    std::mutex lock_;
    std::vector<Record> records_; /* a ring */
    RecordId last_ = 0;
    std::atomic<bool> written_{false};
};

Recorder::Recorder()
{
    const char *size = getenv("TORCH_FR_BUFFER_SIZE");

    records_.resize(size ? strtoul(size, nullptr, 10) : kPlaces);
}

Recorder &Recorder::get()
{
    static std::atomic<Recorder *> current{nullptr}; /* never destroyed: see group.cpp */
    Recorder *recorder = current.load(std::memory_order_acquire);

    if (C10_LIKELY(recorder && recorder->generation_ == generation()))
        return *recorder;
    auto *fresh = new Recorder;
    if (current.compare_exchange_strong(recorder, fresh))
        return *fresh;
    delete fresh;
    return *recorder;
}

RecordId Recorder::begin(const std::shared_ptr<RecordedGroup> &group, const Plan &plan,
                         uint64_t sequence, bool started)
{
    if (records_.empty())
        return 0;
    const char *name = name_of(plan);
    const bool joined = made_of_blocks(plan.type);
    const int64_t now = wall_ns();
    int64_t bytes = 0;
    for (const at::Tensor &tensor : plan.inputs)
        bytes += static_cast<int64_t>(tensor.numel()) * tensor.element_size();
    std::lock_guard<std::mutex> guard(lock_);
    Record &record = records_[++last_ % records_.size()];

    record.id = last_;
    if (record.group != group)
        record.group = group;
    record.name = name;
    record.sequence = sequence;
    record.timeout_ms = group->timeout_of(plan.timeout_ms);
    record.created = now;
    record.begun = started ? now : 0;
    record.ended = 0;
    record.failed = false;
    record.error.clear();
    record.inputs.set(plan.inputs, joined);
    record.outputs.set(plan.outputs, joined);
    record.bytes = bytes;
    record.device = plan.device ? *plan.device : c10::Device(c10::kCPU);
    group->enqueued_ = sequence;
    return last_;
}

void Recorder::started(RecordId id)
{
    const int64_t now = wall_ns();
    std::lock_guard<std::mutex> guard(lock_);

    if (Record *record = find(id))
        record->begun = now;
}

void Recorder::end(RecordId id, const char *error)
{
    if (!id)
        return;
    const int64_t now = wall_ns();
    int64_t rank = 0;
    {
        std::lock_guard<std::mutex> guard(lock_);
        Record *record = find(id);
        if (!record)
            return;
        rank = record->group->global_rank_;
        record->ended = now;
        record->failed = error;
        if (error)
            record->error = error;
        else
            record->group->completed_ = std::max(record->group->completed_, record->sequence);
    }
    if (C10_UNLIKELY(error))
        write_file(rank);
}

/* An operation that failed stays "started", as in torch's recorder: it did not complete. */
Dict Recorder::dump_record(const Record &record)
{
    Dict out = new_dict();
    const bool done = record.ended && !record.failed;
    auto when = [](int64_t ns) { return ns ? c10::IValue(ns) : c10::IValue(); };
    auto number = [](uint64_t n) { return static_cast<int64_t>(n); };

    out.insert("record_id", number(record.id - 1));
    out.insert("pg_id", number(record.group->id_));
    out.insert("process_group",
               c10::ivalue::Tuple::create(record.group->name_, record.group->description_));
    out.insert("collective_seq_id", number(record.sequence));
    out.insert("p2p_seq_id", int64_t(0));
    out.insert("op_id", number(record.sequence));
    out.insert("profiling_name", c10::str("gloo:", record.name));
    out.insert("backend", "commd");
    out.insert("time_created_ns", record.created);
    out.insert("time_discovered_started_ns", when(record.begun));
    out.insert("time_discovered_completed_ns", when(done ? record.ended : 0));
    if (done && record.begun) /* on a GPU it is not known when it began */
        out.insert("duration_ms", static_cast<double>(record.ended - record.begun) / 1e6);
    out.insert("input_sizes", record.inputs.shapes());
    out.insert("input_dtypes", record.inputs.types());
    out.insert("output_sizes", record.outputs.shapes());
    out.insert("output_dtypes", record.outputs.types());
    out.insert("state", done ? "completed" : record.begun ? "started" : "scheduled");
    out.insert("retired", record.ended != 0);
    out.insert("timeout_ms", record.timeout_ms);
    out.insert("is_p2p", false);
    out.insert("bytes", record.bytes);
    out.insert("device", record.device.str());
    if (record.failed)
        out.insert("error", record.error);
    return out;
}

Dict Recorder::dump_group(const RecordedGroup &group)
{
    Dict out = new_dict();

    out.insert("name", group.name_);
    out.insert("desc", group.description_);
    out.insert("ranks", list_of(group.ranks_));
    return out;
}

Dict Recorder::dump_status(const RecordedGroup &group)
{
    Dict out = new_dict();

    out.insert("last_enqueued_collective", static_cast<int64_t>(group.enqueued_));
    out.insert("last_started_collective", static_cast<int64_t>(group.enqueued_));
    out.insert("last_completed_collective", static_cast<int64_t>(group.completed_));
    return out;
}

c10::IValue Recorder::dump(bool only_active)
{
    Dict groups = new_dict(), status = new_dict(), all = new_dict();
    List entries = new_list();
    std::vector<Record> records;
    {
        std::lock_guard<std::mutex> guard(lock_);
        for (size_t i = 1; i <= records_.size(); i++) {
            const Record &record = records_[(last_ + i) % records_.size()];
            if (!record.id)
                continue;
            groups.insert_or_assign(record.group->name_, dump_group(*record.group));
            status.insert_or_assign(std::to_string(record.group->id_), dump_status(*record.group));
            if (!only_active || !record.ended)
                records.push_back(record);
        }
    }
    for (const Record &record : records)
        entries.push_back(dump_record(record));
    all.insert("version", kFormat);
    all.insert("comm_lib_version", c10::str("commd ", commd_version()));
    all.insert("pg_config", groups);
    all.insert("pg_status", status);
    all.insert("entries", entries);
    return all;
}

/* Once: what comes after the first failure follows from it. */
void Recorder::write_file(int64_t rank)
{
    const char *prefix = getenv("COMMD_FR_DUMP");

    if (!prefix || !*prefix || written_.exchange(true))
        return;
    const std::string path = prefix + std::to_string(rank);
    std::ofstream file(path, std::ios::binary);
    const std::string text = recorded_pickle(false);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    file.close();
    if (!file)
        LOG(ERROR) << "commd: cannot write what the flight recorder has to " << path << ": "
                   << strerror(errno);
}

/* ---- for the rest of the backend --------------------------------------------------------- */

static size_t next_group_id()
{
    static std::atomic<size_t> next{0};
    return next++;
}

RecordedGroup::RecordedGroup(std::string name, int rank, std::vector<int64_t> ranks)
    : name_(std::move(name)), global_rank_(ranks[rank]), ranks_(std::move(ranks)),
      id_(next_group_id())
{
}

void RecordedGroup::describe(const std::string &description)
{
    Recorder::get().describe(*this, description.empty() ? "undefined" : description);
}

std::tuple<std::string, std::string> RecordedGroup::names() const
{
    return Recorder::get().names(*this);
}

std::pair<int, int> RecordedGroup::line() const
{
    const int64_t step = ranks_.size() > 1 ? ranks_[1] - ranks_[0] : 1;

    for (size_t i = 1; i < ranks_.size(); i++) {
        if (ranks_[i] - ranks_[i - 1] != step)
            return {-1, -1};
    }
    return {static_cast<int>(ranks_[0]), static_cast<int>(step)};
}

RecordId record_begin(const std::shared_ptr<RecordedGroup> &group, const Plan &plan,
                      uint64_t sequence, bool started)
{
    return Recorder::get().begin(group, plan, sequence, started);
}

void record_started(RecordId id)
{
    Recorder::get().started(id);
}

void record_end(RecordId id, const char *error)
{
    Recorder::get().end(id, error);
}

std::string recorded_pickle(bool only_active)
{
    std::string out;
    torch::jit::Pickler pickler(
        [&out](const char *bytes, size_t n) { out.append(bytes, bytes + n); });

    pickler.protocol();
    pickler.pushIValue(Recorder::get().dump(only_active));
    pickler.stop();
    return out;
}

std::string recorded_json(bool only_active)
{
    std::string out;

    put(out, Recorder::get().dump(only_active));
    return out;
}

void register_recorder_handler()
{
#ifdef COMMD_HAVE_HANDLERS
    c10d::control_plane::registerHandler(
        "commd_fr_trace_json",
        [](const c10d::control_plane::Request &request, c10d::control_plane::Response &response) {
            response.setContent(recorded_json(request.getParam("onlyactive") == "true"),
                                "application/json");
            response.setStatus(200);
        });
#endif
}

} // namespace commd
