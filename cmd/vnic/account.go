package main

import (
	"bytes"
	"errors"
	"io"

	"vnic.dev/vnic/cmd/vnic/internal/stat"
)

// tellFlows says who sent what to whom when a lab has ended, to w and to a file, which may be nil.
func tellFlows(w io.Writer, last *stat.Page, file *draft) error {
	if last == nil {
		return nil
	}
	err := stat.FlowTable(w, last.Flows)
	if file == nil {
		return err
	}
	var b bytes.Buffer
	all := last.Flows
	if all == nil {
		all = &stat.Flows{List: []stat.Flow{}}
	}
	return errors.Join(err, printJSON(&b, all), file.commit(b.Bytes()))
}
