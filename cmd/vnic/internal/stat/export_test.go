package stat

var MetricsHandler = metricsHandler
