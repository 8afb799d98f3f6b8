// The primitives of sm_90a, for kernels that include this beside tsc_device.cuh.
//
//   mbarrier.cuh    barriers that count arrivals and bytes         tma.cuh      boxes of tensors through the copy engine
//   cluster.cuh     clusters, each other's shared memory           wgmma.cuh    asynchronous products of a warp group
#pragma once
#include "tsc_device.cuh"
#ifdef TSC_EMU
#include "../emu/hopper.hpp"
#endif
#include "mbarrier.cuh"
#include "cluster.cuh"
#include "tma.cuh"
#include "wgmma.cuh"
