package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/cmd/vnic/internal/live"
	"vnic.dev/vnic/cmd/vnic/internal/plot"
	"vnic.dev/vnic/cmd/vnic/internal/run"
)

// picture is --plot: the file is drawn when the run has ended. A nil picture is none.
type picture struct {
	recorder *run.Recorder
	format   string
	draft    *live.Draft
}

// checkPlot says what is wrong with --plot.
func checkPlot(c *cobra.Command, file string) error {
	if !c.Flags().Changed("plot") {
		return nil
	}
	if _, err := plot.Format(file); err != nil {
		return fmt.Errorf("--plot %w", err)
	}
	return nil
}

// newPicture is the picture in a file, whose draft l makes; "": there is none.
func newPicture(l *live.Command, file, lab string) *picture {
	if file == "" {
		return nil
	}
	format, _ := plot.Format(file) // checkPlot has
	return &picture{recorder: &run.Recorder{Name: lab}, format: format, draft: l.File("plot", file)}
}

// labTitle is a lab's name in the title: of a file, without directory and extension.
func labTitle(name string) string {
	base := filepath.Base(name)
	if name == "" {
		return ""
	}
	return strings.TrimSuffix(base, filepath.Ext(base))
}

// record has a run be recorded.
func (p *picture) record(o *run.Options) {
	if p != nil {
		o.Recorder = p.recorder
	}
}

// write draws the run.
func (p *picture) write(rep *run.Report) error {
	if p == nil {
		return nil
	}
	var b bytes.Buffer
	if err := p.recorder.Picture(rep).Write(&b, p.format); err != nil {
		return fmt.Errorf("--plot %w", err)
	}
	return p.draft.Commit(b.Bytes())
}
