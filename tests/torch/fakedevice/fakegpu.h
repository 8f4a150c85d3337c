/* fakegpu.h - a device of torch over the CUDA driver of tests/fakecuda. See fakegpu.cpp. */
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include "shm/gpu/cuda.h"

namespace fakegpu
{

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

/* The driver, initialised, at its first use: a program that forks does so before. */
const cuda &driver();
void must(cu_result result, const char *what);
int device_count();
/* Makes the context of @index current in this thread. */
void enter(c10::DeviceIndex index);

cu_stream native(const c10::Stream &stream);
c10::DeviceIndex current_device();
c10::Stream current_stream(c10::DeviceIndex index);
c10::Stream set_current_stream(c10::Stream stream);
c10::Stream next_stream(c10::DeviceIndex index);

c10::Allocator *allocator();
/* Freed memory is not handed out again before what @stream has been given by then is done. */
void record_stream(const c10::DataPtr &data, const c10::Stream &stream);
/* How often a block was handed out again. */
size_t reused();

/* On the current stream, as everything that follows. */
void copy_bytes(void *to, const void *from, size_t bytes, c10::DeviceIndex index);
void synchronize(c10::DeviceIndex index);

} // namespace fakegpu
