package bench

import (
	_ "embed" // the schema
)

// Schema is the JSON schema of a Report.
//
//go:embed schema.json
var Schema string

// Report is the result of `vnic bench`, and its --json (schema.json).
type Report struct {
	Schema     int     `json:"schema"`
	CPUs       int     `json:"cpus"`
	Arch       string  `json:"arch"` // "linux/amd64"
	Go         string  `json:"go"`
	Quick      bool    `json:"quick"`
	Pairs      int     `json:"pairs"`       // of each row: ours, the yardstick
	RunSeconds float64 `json:"run_seconds"` // of one run, two of which are a pair
	Rows       []Row   `json:"rows"`
}

// Row is one measurement.
type Row struct {
	Name      string `json:"name"`
	Unit      string `json:"unit"`      // GBps or NsFrame
	About     string `json:"about"`     // what is measured
	Yardstick string `json:"yardstick"` // what it is compared with, in words; "": it is one itself
	Measured  bool   `json:"measured"`
	Note      string `json:"note,omitempty"` // why it was not measured
	Bytes     uint64 `json:"bytes"`          // payload that ours moved in all runs, by counters

	Ours  *Interval `json:"ours"`            // in Unit; null: not measured, and so below
	Yard  *Interval `json:"yardstick_value"` // likewise; null also without a yardstick
	Ratio *Interval `json:"ratio"`           // of a pair: ours / yardstick
	AA    *Interval `json:"aa"`              // ours of the next pair / ours
}
