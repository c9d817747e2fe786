package main

import (
	"fmt"
	"log/slog"

	"github.com/spf13/pflag"

	"vnic.dev/vnic/cmd/vnic/internal/page"
	"vnic.dev/vnic/cmd/vnic/internal/stat"
)

// pageOptions are --http and --report: a page of the lab, live, and as a file when it has ended.
type pageOptions struct{ addr, report string }

func (o *pageOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.addr, "http", "",
		"serve a page that shows the lab, links, flows and GPU memory, at this HOST:PORT, as localhost:8080, while it runs "+
			"(docs/page.md)")
	f.StringVar(&o.report, "report", "",
		"write the same of the whole run, when it has ended, as one HTML file, to this file")
}

func (o *pageOptions) check() error { return page.CheckAddr(o.addr) }

// pages are what shows it. nil: nothing does.
type pages struct {
	recorder *page.Recorder
	server   *page.Server // nil: none
	report   *draft
}

// show begins to record and to serve, while this process may listen. Without an error the caller closes it, before
// counters and the report.
func (o *pageOptions) show(counters *stat.Server, report *draft, log *slog.Logger,
	note func(format string, args ...any)) (*pages, error) {
	if o.addr == "" && o.report == "" {
		return nil, nil
	}
	p := &pages{recorder: page.Record(counters.Page), report: report}
	if o.addr == "" {
		return p, nil
	}
	var err error
	if p.server, err = page.Serve(o.addr, p.recorder, log); err != nil {
		p.recorder.Close()
		return nil, err
	}
	note("page at %s", p.server.URL())
	return p, nil
}

// close ends them and writes the report, if there was anything to record.
func (p *pages) close() error {
	if p == nil {
		return nil
	}
	p.recorder.Close()
	if p.server != nil {
		p.server.Close()
	}
	if p.report == nil || !p.recorder.Seen() {
		return nil
	}
	b, err := p.recorder.Report()
	if err != nil {
		return fmt.Errorf("--report %s: %w", p.report.name, err)
	}
	return p.report.commit(b)
}
