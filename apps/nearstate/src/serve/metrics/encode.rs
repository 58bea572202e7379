//! Encoding of metric families with the library's encoder.

use std::fmt;

use nearstate_node::metrics::Distribution;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, NoLabelSet,
};
use prometheus_client::metrics::MetricType;

/// A counter without labels.
pub(in crate::serve) fn counter<V: EncodeCounterValue + Copy>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: V,
) -> fmt::Result {
    let mut one = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    one.encode_counter::<NoLabelSet, V, f64>(&value, None)
}

/// A gauge without labels.
pub(in crate::serve) fn gauge<V: EncodeGaugeValue + Copy>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: V,
) -> fmt::Result {
    to.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
}

/// A family of counters.
pub(in crate::serve) fn counters<S: EncodeLabelSet, V: EncodeCounterValue>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (S, V)>,
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in values {
        family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&value, None)?;
    }
    Ok(())
}

/// A family of gauges.
pub(in crate::serve) fn gauges<S: EncodeLabelSet, V: EncodeGaugeValue>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (S, V)>,
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        family.encode_family(&labels)?.encode_gauge(&value)?;
    }
    Ok(())
}

/// Upper bounds of the histogram buckets, in nanoseconds: 100 ns to 10 s, three per power of ten.
pub(in crate::serve) const BOUNDS: [u64; 25] = [
    100,
    200,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];

#[expect(clippy::cast_precision_loss, reason = "a bound is known to an eighth anyway")]
pub(in crate::serve) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// The number of values in each bucket; the last bucket has no upper bound.
pub(in crate::serve) fn buckets(distribution: &Distribution) -> Vec<(f64, u64)> {
    let mut counts: Vec<(f64, u64)> = BOUNDS.iter().map(|bound| (seconds(*bound), 0)).collect();
    counts.push((f64::INFINITY, 0));
    for (bound, count) in &distribution.counts {
        let at = BOUNDS.partition_point(|known| known < bound);
        if let Some((_, sum)) = counts.get_mut(at) {
            *sum += count;
        }
    }
    counts
}

/// A family of histograms of durations.
pub(in crate::serve) fn histograms<S: EncodeLabelSet>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (S, Distribution)>,
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (labels, seen) in values {
        let (sum, total) = (seconds(seen.sum), seen.total());
        let mut one = family.encode_family(&labels)?;
        one.encode_histogram::<NoLabelSet>(sum, total, &buckets(&seen), None)?;
    }
    Ok(())
}
