//! How much memory an adapter has. wgpu does not say; Vulkan does.

/// `VK_MEMORY_HEAP_DEVICE_LOCAL_BIT`.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "windows"))]
const DEVICE_LOCAL: u32 = 1;

/// Bytes of the largest heap that is the device's own, where the API tells.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "windows"))]
pub(crate) fn device_memory(adapter: &wgpu::Adapter) -> Option<u64> {
    // SAFETY: nothing is destroyed through the handle, and the borrow ends before the adapter does.
    let vulkan = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = vulkan.shared_instance().raw_instance();
    // SAFETY: the physical device is of this instance, which lives as long as the adapter; the call only reads.
    let memory = unsafe { instance.get_physical_device_memory_properties(vulkan.raw_physical_device()) };
    let heaps = memory.memory_heaps.iter().take(memory.memory_heap_count as usize);
    heaps.filter(|heap| heap.flags.as_raw() & DEVICE_LOCAL != 0).map(|heap| heap.size).max()
}

/// Unknown here.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "windows")))]
pub(crate) fn device_memory(_adapter: &wgpu::Adapter) -> Option<u64> {
    None
}
