/* bind.cpp - the Python side: the module, signals and the GIL. */
#include "backend.h"
#include "python.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/python.h>

namespace commd
{

/* check_signals() has left an exception on this thread. */
static thread_local bool pending_here;

int check_signals(void *)
{
    /* Python handles signals on the main thread only, and other threads must not take the GIL
     * here: at exit they would never get it. */
    if (syscall(SYS_gettid) != getpid() || !Py_IsInitialized())
        return 0;
    PyGILState_STATE state = PyGILState_Ensure();
    int pending = PyErr_CheckSignals();
    PyGILState_Release(state);
    pending_here |= pending != 0;
    return pending;
}

void raise_pending_any()
{
    if (!pending_here || !Py_IsInitialized())
        return;
    pybind11::gil_scoped_acquire gil;

    pending_here = false;
    if (PyErr_Occurred())
        throw pybind11::error_already_set();
}

void raise_pending()
{
    raise_pending_any();
    std::rethrow_exception(backend_error("commd: interrupted"));
}

GilRelease::GilRelease() : state_(nullptr)
{
    if (Py_IsInitialized() && PyGILState_Check())
        state_ = PyEval_SaveThread();
}

GilRelease::~GilRelease()
{
    if (state_)
        PyEval_RestoreThread(static_cast<PyThreadState *>(state_));
}

namespace
{

/* @joined: by rejoin(); @parent: in which all members are. */
c10::intrusive_ptr<ProcessGroupCommd> create(const c10d::DistributedBackendOptions &options,
                                             std::shared_ptr<Group> joined,
                                             const c10::intrusive_ptr<ProcessGroupCommd> &parent)
{
    GroupSpec spec;

    spec.store = options.store;
    spec.rank = options.group_rank;
    spec.size = options.group_size;
    spec.timeout = checked_timeout("process group", limit_of(options.timeout));
    spec.id = options.group_id;
    spec.ranks = options.global_ranks_in_group;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
    spec.reconfigurable = options.enable_reconfigure;
#endif
    if (parent && !spec.reconfigurable)
        parent->found(spec, std::vector<int>(spec.ranks.begin(), spec.ranks.end()));
    GilRelease no_gil;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
    if (spec.reconfigurable)
        joined = Group::unjoined("torch/" + spec.id);
#endif
    return c10::make_intrusive<ProcessGroupCommd>(spec, std::move(joined));
}

} // namespace

} // namespace commd

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    using commd::ProcessGroupCommd;
    namespace py = pybind11;

    /* The bases are torch's classes: they have to be bound before ours. */
    py::module_::import("torch._C._distributed_c10d");
#if COMMD_TORCH_SINCE(2, 6) /* its base has no Python class before, and nobody asks for it */
    py::class_<commd::OptionsCommd, c10d::Backend::Options,
               c10::intrusive_ptr<commd::OptionsCommd>>(m, "OptionsCommd")
        .def("__deepcopy__", [](const commd::OptionsCommd &options, const py::dict &) {
            return c10::make_intrusive<commd::OptionsCommd>(options);
        });
#endif
    py::class_<ProcessGroupCommd, c10d::Backend, c10::intrusive_ptr<ProcessGroupCommd>>(
        m, "ProcessGroupCommd")
#if COMMD_TORCH_SINCE(2, 6)
        .def_property_readonly("options", &ProcessGroupCommd::getBackendOptions)
#endif
#if !COMMD_TORCH_SINCE(2, 7) /* its class has them from then on */
        .def("abort", &ProcessGroupCommd::abort)
        .def("shutdown", &ProcessGroupCommd::shutdown)
#endif
        /* What torch asks of ranks that stay out of a new group, where splitting is supported. */
        .def("perform_nocolor_split", [](ProcessGroupCommd &, c10::Device) {})
        /* _amend.py; the first as gloo's. */
        .def(
            "_set_default_timeout",
            [](ProcessGroupCommd &group, std::chrono::microseconds timeout) {
                group.setTimeout(commd::limit_of(timeout));
            },
            py::arg("timeout"), py::call_guard<py::gil_scoped_release>())
        .def("_abandon_coalescing", &ProcessGroupCommd::abandonCoalescing,
             py::call_guard<py::gil_scoped_release>())
        /* _recover.py */
        .def(
            "_recover",
            [](ProcessGroupCommd &backend, const c10::intrusive_ptr<c10d::ProcessGroup> &group,
               const commd::RecoverySpec &spec) { return backend.recover(*group, spec); },
            py::call_guard<py::gil_scoped_release>())
        .def("_place", &ProcessGroupCommd::place, py::call_guard<py::gil_scoped_release>())
        .def("_agree_on_meeting", &ProcessGroupCommd::agree_on_meeting,
             py::call_guard<py::gil_scoped_release>())
        .def("_stands", &ProcessGroupCommd::stands, py::call_guard<py::gil_scoped_release>())
        .def("_epoch", &ProcessGroupCommd::epoch)
        .def_property("_meeting", &ProcessGroupCommd::meeting, &ProcessGroupCommd::set_meeting);
    py::class_<commd::RecoverySpec>(m, "RecoverySpec")
        .def(py::init<>())
        .def_readwrite("name", &commd::RecoverySpec::name)
        .def_readwrite("policy", &commd::RecoverySpec::policy)
        .def_readwrite("size", &commd::RecoverySpec::size)
        .def_readwrite("min_size", &commd::RecoverySpec::min_size)
        .def_readwrite("wait_ms", &commd::RecoverySpec::wait_ms)
        .def_readwrite("timeout_ms", &commd::RecoverySpec::timeout_ms);
    py::class_<commd::Epoch>(m, "Epoch")
        .def_readonly("rank", &commd::Epoch::rank)
        .def_readonly("size", &commd::Epoch::size)
        .def_readonly("number", &commd::Epoch::number)
        .def_readonly("before", &commd::Epoch::before);
    py::class_<commd::Group, std::shared_ptr<commd::Group>>(m, "JoinedGroup")
        .def("epoch", &commd::Group::epoch)
        .def("close", &commd::Group::close, py::call_guard<py::gil_scoped_release>());
    m.def("rejoin", &commd::Group::rejoin, py::arg("rank"), py::arg("spec"),
          py::call_guard<py::gil_scoped_release>());
    /* _amend.py */
    py::class_<commd::Waiting>(m, "Waiting")
        .def(py::init<const std::string &, int, int>(), py::arg("name"), py::arg("rank"),
             py::arg("size"), py::call_guard<py::gil_scoped_release>())
        .def("close", &commd::Waiting::close, py::call_guard<py::gil_scoped_release>());
    m.def("create", &commd::create, py::arg("options"), py::arg("joined") = nullptr,
          py::arg("parent") = nullptr);
    m.def("empty", &commd::empty, py::arg("sizes"), py::arg("dtype"),
          py::call_guard<py::gil_scoped_release>());
    /* Bytes: a pickle is no text. */
    m.def("flight_recorder", [](bool only_active) {
        std::string pickle;
        {
            py::gil_scoped_release no_gil;
            pickle = commd::recorded_pickle(only_active);
        }
        return py::bytes(pickle);
    });
    m.def("leave_at_exit", &commd::leave_all_at_exit, py::call_guard<py::gil_scoped_release>());
    m.def("libcommd_version", &commd_version);
    commd::register_recorder_handler();
}
