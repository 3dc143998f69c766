//! The adapters of this machine, and opening one.

use std::fmt;
use std::sync::Arc;

use graph::backend::DeviceError;
use wgpu::{Backends, Features, Limits};

use crate::device::Gpu;

/// Which limits and features a device is opened with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Profile {
    /// All that the adapter has.
    #[default]
    Adapter,
    /// The defaults of WebGPU and no feature at all: what any browser offers. 8 storage buffers, bindings of 128 MiB, 256
    /// invocations, 16 KiB of workgroup memory.
    WebGpu,
}

/// How a device is opened.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// Index into [`adapters`], or `None` for the first.
    pub adapter: Option<usize>,
    /// Only adapters of these APIs; `None` is all that this build has.
    pub backends: Option<Backends>,
    /// Limits and features.
    pub profile: Profile,
    /// Kernel families that are used although probing would choose others.
    pub families: crate::select::Families,
}

/// An adapter.
#[derive(Clone, Debug)]
pub struct AdapterInfo {
    /// As the driver names it.
    pub name: String,
    /// API: `vulkan`, `metal`, `dx12`, `webgpu`.
    pub api: String,
    /// Driver and its version.
    pub driver: String,
    /// Discrete, integrated, virtual or software.
    pub kind: &'static str,
    /// Features that kernels can use.
    pub features: Vec<&'static str>,
    /// Limits.
    pub limits: Limits,
    /// Smallest and largest subgroup.
    pub subgroups: (u32, u32),
    /// Bytes of memory of its own, where the API tells.
    pub memory: Option<u64>,
}

impl fmt::Display for AdapterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let software = if self.kind == "software" { ", in software" } else { "" };
        write!(f, "{} ({}, {}{software})", self.name, self.api, self.driver)
    }
}

/// What kernels can use of an adapter's features, with the names we give them.
const USED: [(Features, &str); 4] = [
    (Features::SUBGROUP, "subgroups"),
    (Features::SHADER_F16, "f16"),
    (Features::TIMESTAMP_QUERY, "timestamps"),
    (Features::TIMESTAMP_QUERY_INSIDE_PASSES, "timestamps inside passes"),
];

fn instance(backends: Option<Backends>) -> wgpu::Instance {
    let mut desc = wgpu::InstanceDescriptor::new_without_display_handle();
    desc.backends = backends.unwrap_or(Backends::PRIMARY);
    wgpu::Instance::new(desc)
}

async fn enumerate(backends: Option<Backends>) -> Vec<wgpu::Adapter> {
    let mut found = instance(backends).enumerate_adapters(backends.unwrap_or(Backends::PRIMARY)).await;
    // Hardware first, whatever order the loader has.
    found.sort_by_key(|a| rank(a.get_info().device_type));
    found
}

fn rank(kind: wgpu::DeviceType) -> u8 {
    match kind {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    }
}

fn describe(adapter: &wgpu::Adapter) -> AdapterInfo {
    let info = adapter.get_info();
    let features = adapter.features();
    AdapterInfo {
        name: info.name,
        api: info.backend.to_string(),
        driver: [info.driver, info.driver_info].join(" ").trim().to_owned(),
        kind: match info.device_type {
            wgpu::DeviceType::DiscreteGpu => "discrete",
            wgpu::DeviceType::IntegratedGpu => "integrated",
            wgpu::DeviceType::VirtualGpu => "virtual",
            wgpu::DeviceType::Cpu => "software",
            wgpu::DeviceType::Other => "unknown",
        },
        features: USED.iter().filter(|(f, _)| features.contains(*f)).map(|(_, name)| *name).collect(),
        limits: adapter.limits(),
        subgroups: (info.subgroup_min_size, info.subgroup_max_size),
        memory: crate::memory::device_memory(adapter),
    }
}

/// The adapters of this machine, hardware before software.
pub async fn adapters(backends: Option<Backends>) -> Vec<AdapterInfo> {
    enumerate(backends).await.iter().map(describe).collect()
}

/// Why there is no such adapter, and what to do about it.
async fn absent(index: usize, backends: Option<Backends>) -> String {
    if enumerate(None).await.is_empty() {
        return format!("there is no GPU that can be used: {INSTALL}");
    }
    let names = |api: Backends| {
        api.iter_names().map(|(name, _)| name.to_lowercase()).collect::<Vec<_>>().join(" or ")
    };
    let of = backends.map_or_else(String::new, |api| format!(" through {}", names(api)));
    format!("there is no GPU {index}{of}: `gristmill devices` lists what this system offers")
}

/// Where adapters come from.
const INSTALL: &str = if cfg!(target_arch = "wasm32") {
    "the browser offers no WebGPU here, for which it needs a secure page and a GPU that it does not block"
} else if cfg!(target_os = "linux") {
    "install the Vulkan driver of its vendor and the loader (packages like `libvulkan1`); for a GPU in software, Mesa's \
     drivers (packages like `mesa-vulkan-drivers`)"
} else if cfg!(target_os = "windows") {
    "install the driver of its vendor"
} else {
    "the system offers none"
};

/// Opens a device.
///
/// # Errors
/// There is no such adapter, or it refuses.
pub(crate) async fn open(options: &GpuOptions) -> Result<Arc<Gpu>, DeviceError> {
    let index = options.adapter.unwrap_or(0);
    let adapter = if cfg!(target_arch = "wasm32") {
        instance(options.backends).request_adapter(&wgpu::RequestAdapterOptions::default()).await.ok()
    } else {
        enumerate(options.backends).await.into_iter().nth(index)
    };
    let Some(adapter) = adapter else {
        return Err(DeviceError::Absent(absent(index, options.backends).await));
    };
    open_adapter(&adapter, options.profile, options.families).await
}

/// Opens a device of this adapter.
pub(crate) async fn open_adapter(
    adapter: &wgpu::Adapter,
    profile: Profile,
    families: crate::select::Families,
) -> Result<Arc<Gpu>, DeviceError> {
    let info = describe(adapter);
    let (features, limits) = match profile {
        Profile::WebGpu => (Features::empty(), Limits::default()),
        Profile::Adapter => {
            let wanted = USED.iter().fold(Features::empty(), |all, (f, _)| all | *f);
            (adapter.features() & wanted, adapter.limits())
        }
    };
    let desc = wgpu::DeviceDescriptor {
        label: Some("gristmill"),
        required_features: features,
        required_limits: limits,
        memory_hints: wgpu::MemoryHints::Performance,
        ..Default::default()
    };
    let opened = adapter.request_device(&desc).await;
    let (device, queue) = opened.map_err(|e| DeviceError::Absent(format!("{info} cannot be opened: {e}")))?;
    Gpu::new(info, device, queue, families)
}
