//! Where the devices of a trace lie on one device.

use super::Request;
use std::collections::BTreeMap;

/// Bytes of a region that [`Compact`] keeps or leaves out.
pub const REGION_BYTES: u64 = 1 << 20;

/// Devices end to end, by number. Memory grows with the number of devices, not with the trace.
#[derive(Debug, Clone, Default)]
pub struct Span {
    /// First byte behind what is touched of each device; once it is [`Span::lay`]ed, the first byte before it.
    devices: BTreeMap<u64, u64>,
    total: u64,
}

impl Span {
    /// Notes what a request touches.
    pub fn add(&mut self, request: &Request) {
        let end = self.devices.entry(request.device).or_default();
        *end = (*end).max(request.end());
    }

    /// Lays the devices end to end; each begins at a multiple of `align` bytes, and the total is one.
    ///
    /// # Errors
    /// The devices do not fit in 2^63 bytes.
    pub fn lay(mut self, align: u64) -> Result<Span, String> {
        for place in self.devices.values_mut() {
            let bytes = place.next_multiple_of(align);
            *place = self.total;
            self.total = self.total.checked_add(bytes).filter(|total| *total < 1 << 63).ok_or_else(|| {
                "the devices of the trace do not fit in 2^63 bytes end to end; `replay --compact` lays out only what is touched".to_string()
            })?;
        }
        Ok(self)
    }

    /// Devices.
    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// Bytes of all devices, end to end.
    pub fn bytes(&self) -> u64 {
        self.total
    }

    /// Where a request lies; `None` if its device was not noted.
    pub fn place(&self, request: &Request) -> Option<u64> {
        Some(self.devices.get(&request.device)? + request.offset)
    }
}

/// Touched regions of all devices, one after the other in order. Memory grows with what is touched, up to a bound.
#[derive(Debug, Clone)]
pub struct Compact {
    regions: BTreeMap<(u64, u64), u64>,
    max_bytes: u64,
}

/// Requests touch more than a device can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "requests up to this one touch more than {max_bytes} bytes in regions of 1 MiB, which is all that a device with pages of this size can address"
)]
pub struct TooMuchTouched {
    max_bytes: u64,
}

impl Compact {
    /// No regions; they may have so many bytes.
    pub fn new(max_bytes: u64) -> Compact {
        Compact { regions: BTreeMap::new(), max_bytes }
    }

    /// Notes what a request touches.
    ///
    /// # Errors
    /// All regions have too many bytes.
    pub fn add(&mut self, request: &Request) -> Result<(), TooMuchTouched> {
        for region in regions(request) {
            self.regions.insert((request.device, region), 0);
            if self.bytes() > self.max_bytes {
                return Err(TooMuchTouched { max_bytes: self.max_bytes });
            }
        }
        Ok(())
    }

    /// Numbers the regions in order.
    pub fn lay(mut self) -> Compact {
        self.regions.values_mut().zip(0..).for_each(|(place, number)| *place = number);
        self
    }

    /// Bytes of all regions.
    pub fn bytes(&self) -> u64 {
        self.regions.len() as u64 * REGION_BYTES
    }

    /// Where a request lies; `None` if it was not noted. Regions that touch each other stay neighbours, so a request
    /// stays in one piece.
    pub fn place(&self, request: &Request) -> Option<u64> {
        let region = self.regions.get(&(request.device, request.offset / REGION_BYTES))?;
        Some(region * REGION_BYTES + request.offset % REGION_BYTES)
    }
}

fn regions(request: &Request) -> impl Iterator<Item = u64> {
    let last = request.end().max(request.offset + 1) - 1;
    request.offset / REGION_BYTES..last / REGION_BYTES + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssd::Op;

    fn request(device: u64, offset: u64, bytes: u64) -> Request {
        Request { at: 0, op: Op::Read, device, offset, bytes }
    }

    #[test]
    fn devices_lie_end_to_end() {
        let mut span = Span::default();
        for r in [request(7, 0, 512), request(2, 4096, 5000), request(2, 0, 512)] {
            span.add(&r);
        }
        let span = span.lay(4096).unwrap();
        assert_eq!((span.place(&request(2, 512, 1)), span.place(&request(7, 512, 1))), (Some(512), Some(12_800)));
        assert_eq!(span.place(&request(3, 0, 1)), None);
        assert_eq!((span.bytes(), span.devices()), (16_384, 2));
    }

    #[test]
    fn regions_that_nothing_touches_are_left_out() {
        let mut compact = Compact::new(u64::MAX);
        let (far, near) = (request(0, 100 * REGION_BYTES - 512, 1024), request(0, 3, 5));
        for r in [far, near, request(1, 0, 0)] {
            compact.add(&r).unwrap();
        }
        let compact = compact.lay();
        assert_eq!((compact.place(&near), compact.place(&far)), (Some(3), Some(2 * REGION_BYTES - 512)));
        assert_eq!(compact.bytes(), 4 * REGION_BYTES);
    }

    #[test]
    fn a_request_of_more_regions_than_a_device_can_have_is_refused_before_they_are_noted() {
        let mut compact = Compact::new(4 * REGION_BYTES);
        compact.add(&request(0, 0, 4 * REGION_BYTES)).unwrap();
        compact.add(&request(0, REGION_BYTES, REGION_BYTES)).unwrap();
        assert_eq!(compact.add(&request(1, 0, 1 << 40)), Err(TooMuchTouched { max_bytes: 4 * REGION_BYTES }));
        assert_eq!(compact.regions.len(), 5);
    }
}
