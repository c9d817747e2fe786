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

// Draft is a file that a flag names, and that gets its name by Commit; a nil *Draft is no file.
type Draft struct {
	flag, name     string
	*outfile.Draft // nil: not opened yet
}

// open makes the file, without a name or with a temporary one. If b is not nil, the broker later gives the file its
// name, or removes it. The caller closes the Draft.
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

// OpenDraft opens a Draft of the file that a flag names, without a broker; it returns nil if name is "". The caller
// closes the Draft.
func OpenDraft(flag, name string) (*Draft, error) {
	if name == "" {
		return nil, nil //nolint:nilnil // as documented
	}
	d := &Draft{flag: flag, name: name}
	return d, d.open(nil)
}

// Commit writes b to the file and gives the file its name. Commit of a nil Draft does nothing.
func (d *Draft) Commit(b []byte) error {
	if d == nil {
		return nil
	}
	if err := d.Draft.Commit(b); err != nil {
		return fmt.Errorf("--%s %w", d.flag, err)
	}
	return nil
}

// Close removes the file, unless Commit was called. Close of a nil Draft does nothing.
func (d *Draft) Close() error {
	if d == nil {
		return nil
	}
	return d.Discard()
}

// Page has the values of --http and --report, for a web page that shows the lab.
type Page struct{ addr, report string }

// Flags adds --http and --report to f.
func (o *Page) Flags(f *pflag.FlagSet) {
	f.StringVar(&o.addr, "http", "",
		"serve a page that shows the lab, links, flows and GPU memory, at this HOST:PORT, as localhost:8080, while it runs "+
			"(docs/page.md)")
	f.StringVar(&o.report, "report", "",
		"write the same of the whole run, when it has ended, as one HTML file, to this file")
}

// show begins to record the counters, and to serve the page if o has an address; without --http and --report it does
// nothing. The caller calls end before it closes the counters and the report. end stops both, and writes the report, if
// report is not nil and a port was recorded.
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

// TellFlows writes the flows in last, the Page of a lab that has ended: as a stat.FlowTable to w, and with accel as
// JSON to file, unless file is nil. If last is nil, it writes nothing.
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
