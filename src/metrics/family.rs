//! Making and registering metric families: buckets and registry in one place.

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use super::MetricsError;

/// 1 ms to 60 s: from a transaction on the same machine to the longest deadline of a call anyone configures.
const SECONDS: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Powers of two up to the default batch (512) and some way beyond.
const SIZES: [f64; 12] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0];

/// 0 where there is nothing to have an age.
pub(super) fn seconds(age: Option<Duration>) -> f64 {
    age.map_or(0.0, |age| age.as_secs_f64())
}

/// A registry, and the ways in which this program fills it.
pub(super) struct Families(Registry);

impl Families {
    pub(super) fn new() -> Self {
        Self(Registry::new())
    }

    pub(super) fn into_registry(self) -> Registry {
        self.0
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> Result<IntCounter, MetricsError> {
        self.registered(IntCounter::new(name, help)?)
    }

    pub(super) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, MetricsError> {
        self.registered(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, MetricsError> {
        self.registered(IntGauge::new(name, help)?)
    }

    pub(super) fn gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntGaugeVec, MetricsError> {
        self.registered(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn seconds_gauge(&self, name: &str, help: &str) -> Result<Gauge, MetricsError> {
        self.registered(Gauge::new(name, help)?)
    }

    pub(super) fn seconds_gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<GaugeVec, MetricsError> {
        self.registered(GaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn histogram(&self, name: &str, help: &str) -> Result<Histogram, MetricsError> {
        let opts = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        self.registered(Histogram::with_opts(opts)?)
    }

    pub(super) fn size_histogram(&self, name: &str, help: &str) -> Result<Histogram, MetricsError> {
        let opts = HistogramOpts::new(name, help).buckets(SIZES.to_vec());
        self.registered(Histogram::with_opts(opts)?)
    }

    pub(super) fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<HistogramVec, MetricsError> {
        let opts = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        self.registered(HistogramVec::new(opts, labels)?)
    }

    fn registered<C: Collector + Clone + 'static>(&self, collector: C) -> Result<C, MetricsError> {
        self.0.register(Box::new(collector.clone()))?;
        Ok(collector)
    }
}
