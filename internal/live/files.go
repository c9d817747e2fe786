package live

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"

	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/outfile"
	"vnic.dev/vnic/internal/report/page"
	"vnic.dev/vnic/internal/report/show"
	"vnic.dev/vnic/internal/report/stat"
)

// Draft is a file that a flag names, and that gets its name when it is complete; nil: no file.
type Draft struct {
	flag, name     string
	*outfile.Draft // nil: not open
}

// open makes the file; b, if not nil, renames or removes it later. The caller closes the Draft.
func (d *Draft) open(b *broker.Client) error {
	f, err := outfile.NewDraft(d.name)
	if err != nil {
		return fmt.Errorf("--%s %w", d.flag, err)
	}
	if b != nil {
		if f.Rename, f.Remove, err = b.Draft(f.File(), f.Temp, f.Name); err != nil {
			return errors.Join(fmt.Errorf("--%s %w", d.flag, err), f.Discard())
		}
	}
	d.Draft = f
	return nil
}

// OpenDraft opens a file that a flag names; it returns nil if name is "". The caller closes the Draft.
func OpenDraft(flag, name string) (*Draft, error) {
	if name == "" {
		return nil, nil //nolint:nilnil // as documented
	}
	d := &Draft{flag: flag, name: name}
	return d, d.open(nil)
}

// Commit writes b and names the file.
func (d *Draft) Commit(b []byte) error {
	if d == nil {
		return nil
	}
	if err := d.Draft.Commit(b); err != nil {
		return fmt.Errorf("--%s %w", d.flag, err)
	}
	return nil
}

// Close removes a file that was not committed.
func (d *Draft) Close() error {
	if d == nil {
		return nil
	}
	return d.Discard()
}

// Page is --http and --report: a page of the lab.
type Page struct{ addr, report string }

// Flags adds the flags.
func (o *Page) Flags(f *pflag.FlagSet) {
	f.StringVar(&o.addr, "http", "",
		"serve a page that shows the lab, links, flows and GPU memory, at this HOST:PORT, as localhost:8080, while it runs "+
			"(docs/page.md)")
	f.StringVar(&o.report, "report", "",
		"write the same of the whole run, when it has ended, as one HTML file, to this file")
}

// show begins to record, and to serve if o has an address; without either flag it does nothing. The caller calls end
// before it closes the counters and the report; end writes the report, if there is one and anything was recorded.
func (o *Page) show(counters *stat.Server, report *Draft, log *slog.Logger, note func(string, ...any)) (
	end func() error, err error) {
	if o.addr == "" && o.report == "" {
		return func() error { return nil }, nil
	}
	var server *page.Server
	recorder := page.Record(counters.Page)
	if o.addr != "" {
		if server, err = page.Serve(o.addr, recorder, log); err != nil {
			recorder.Close()
			return nil, err
		}
		note("page at %s", server.URL())
	}
	return func() error {
		recorder.Close()
		if server != nil {
			server.Close()
		}
		if report == nil || !recorder.Seen() {
			return nil
		}
		b, err := recorder.Report()
		if err != nil {
			return fmt.Errorf("--report %s: %w", report.name, err)
		}
		return report.Commit(b)
	}, nil
}

// TellFlows writes the flows of a lab that has ended: as a table to w, and as JSON to file, unless that is
// nil. If last is nil, it writes nothing.
func TellFlows(w io.Writer, last *stat.Page, accel qemu.Accel, file *Draft) error {
	if last == nil {
		return nil
	}
	err := show.Text(w, func(w io.Writer) error { return stat.FlowTable(w, last.Flows) })
	if file == nil {
		return err
	}
	var b bytes.Buffer
	all := struct {
		Accel qemu.Accel `json:"accel,omitempty"`
		*stat.Flows
	}{accel, last.Flows}
	if all.Flows == nil {
		all.Flows = &stat.Flows{List: []stat.Flow{}}
	}
	return errors.Join(err, show.JSON(&b, all), file.Commit(b.Bytes()))
}
