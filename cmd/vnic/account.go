package main

import (
	"bytes"
	"errors"
	"io"

	"vnic.dev/vnic/cmd/vnic/internal/stat"
	"vnic.dev/vnic/internal/machine/qemu"
)

// tellFlows says who sent what to whom when a lab has ended, to w and to a file, which may be nil, and has accel, by
// which its guests ran.
func tellFlows(w io.Writer, last *stat.Page, accel qemu.Accel, file *draft) error {
	if last == nil {
		return nil
	}
	err := printText(w, func(w io.Writer) error { return stat.FlowTable(w, last.Flows) })
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
	return errors.Join(err, printJSON(&b, all), file.commit(b.Bytes()))
}
