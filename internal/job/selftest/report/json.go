package report

import (
	"io"

	"vnic.dev/vnic/internal/job/selftest/expect"
	"vnic.dev/vnic/internal/job/selftest/results"
	"vnic.dev/vnic/internal/report"
)

// Document is the JSON of a run. Names of fields are API; schema.json describes them.
type Document struct {
	results.Run
	// Judgement compares the results with the expected ones.
	Judgement *expect.Judgement `json:"judgement"`
	// Status is the exit status of vnic selftest by Judgement, if the run ends without an error.
	Status int `json:"status"`
}

// JSON writes the Document of a run and its judgement.
func JSON(w io.Writer, run *results.Run, j *expect.Judgement) error {
	worth := *j
	d := Document{Run: *run, Judgement: &worth, Status: j.Status()}
	d.Schema = results.Schema
	if len(d.Programs) == 0 { // the lists of programs are never null
		d.Programs, worth.Programs = []results.Program{}, []expect.ProgramJudgement{}
	}
	e := report.Encoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(d)
}
