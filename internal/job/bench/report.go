package bench

import (
	_ "embed" // for Schema

	"vnic.dev/vnic/internal/report"
)

// Schema is the JSON schema of a Report.
//
//go:embed schema.json
var Schema string

// Report is the result of `vnic bench`, and its --json (schema.json).
type Report struct {
	Schema int    `json:"schema" jsonschema:"enum=1"`
	CPUs   int    `json:"cpus" jsonschema:"minimum=1"`
	Arch   string `json:"arch"` // "linux/amd64"
	Go     string `json:"go"`   // version of Go that built vnic
	Quick  bool   `json:"quick"`
	// of each row: a run of ours, and one of the yardstick, if any
	Pairs      int     `json:"pairs" jsonschema:"minimum=6"`
	RunSeconds float64 `json:"run_seconds"` // least time of a run
	Rows       []Row   `json:"rows"`
}

// Row is one measurement.
type Row struct {
	Name string `json:"name"`
	// GB/s: 10^9 bytes of payload a second, more is better; ns/frame: less is better
	Unit      string `json:"unit" jsonschema:"enum=GB/s,enum=ns/frame"`
	About     string `json:"about"`          // what is measured
	Yardstick string `json:"yardstick"`      // what ours is compared with; empty: the row is a yardstick itself
	Measured  bool   `json:"measured"`       // false: it was not measured; note has the reason
	Note      string `json:"note,omitempty"` // why it was not measured
	Bytes     uint64 `json:"bytes"`          // payload bytes of all runs of ours but the warm-up, as the runs report them

	Ours *Interval `json:"ours" jsonschema:"nullable"`            // in unit; null if it was not measured
	Yard *Interval `json:"yardstick_value" jsonschema:"nullable"` // in unit; null also without a yardstick
	// ours divided by the yardstick, of each pair; null without a yardstick, or if it was not measured
	Ratio *Interval `json:"ratio" jsonschema:"nullable"`
	// the next run of ours divided by this one: the ratio that noise alone gives; null if it was not measured
	AA *Interval `json:"aa" jsonschema:"nullable"`
}

var columns = report.Columns[Row]{
	{Title: "measurement", Text: func(r *Row) string { return r.Name }},
	{Title: "unit", Text: func(r *Row) string { return r.Unit }},
	{Title: "ours", Text: optional(func(r *Row) *Interval { return r.Ours }, (*Interval).value)},
	{Title: "yardstick", Text: optional(func(r *Row) *Interval { return r.Yard }, (*Interval).value)},
	{Title: "ratio", Text: optional(func(r *Row) *Interval { return r.Ratio }, (*Interval).ratio)},
	{Title: "95 % of ratio", Text: optional(func(r *Row) *Interval { return r.Ratio }, (*Interval).bounds)},
	{Title: "A/A", Text: optional(func(r *Row) *Interval { return r.AA }, (*Interval).ratio)},
	{Title: "95 % of A/A", Text: optional(func(r *Row) *Interval { return r.AA }, (*Interval).bounds)},
}
