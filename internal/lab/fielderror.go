package lab

import (
	"cmp"
	"fmt"
)

// FieldError is an error of one field of a Description. Its text contains the flag that sets the
// field, if there is such a flag. An error of package labfile has the line of the lab file instead.
type FieldError struct {
	Guest string // the guest's name
	Part  string // nics, gpus or links, as in a lab file; "": the field belongs to the guest itself
	Index int    // the element of Part
	Name  string // the name of the NIC or GPU
	Key   string // the field's key in a lab file; "": the error is about the whole NIC or GPU
	Value string // the field's value; "": Text needs none
	Text  string // which values are allowed, or why this one is not
}

// fieldFlags maps a field, by Part and Key, to its flag. A flag sets the field of all guests, NICs
// or GPUs of a command.
var fieldFlags = map[string]string{
	"nics model": "--nic", "nics mtu": "--mtu", "nics max-mtu": "--max-mtu", "nics rsc-usecs": "--rsc-usecs",
	"nics xdp": "--xdp", "nics queues": "--queues", "gpus memory": "--gpu-memory",
	" memory": "--memory", " cpus": "--cpus", " iommu": "--iommu",
}

// partLinks is the Part of errors of CheckLink.
const partLinks = "links"

// flag returns the flag that sets the field; "": there is none.
func (e *FieldError) flag() string {
	if f, err := lookUp(KindLink, e.Key); e.Part == partLinks && err == nil && f.Flag != "" {
		return "--" + e.Key
	}
	return fieldFlags[e.Part+" "+e.Key]
}

const modelNames = Virtio + " or " + GVE

// UnknownModel returns the error for a flag whose value is not the name of a NIC model.
func UnknownModel(name string) error {
	return &FieldError{Part: "nics", Key: "model", Value: name, Text: modelNames}
}

func (e *FieldError) Error() string {
	if flag := e.flag(); flag != "" || e.Part == partLinks {
		return e.says(cmp.Or(flag, e.Key))
	}
	name := cmp.Or(e.Name, fmt.Sprintf("%d of guest %s", e.Index, e.Guest))
	return map[string]string{"nics": "NIC ", "gpus": "GPU "}[e.Part] + name + ": " + e.says(e.Key)
}

// InFile returns the error's text without a flag, for a message that names the place in a lab file.
func (e *FieldError) InFile() string {
	if e.Key == "" {
		return e.Name + ": " + e.Text
	}
	return e.says(e.Key)
}

func (e *FieldError) says(field string) string {
	switch {
	case field == "":
		return e.Text
	case e.Value == "":
		return field + ": " + e.Text
	}
	return field + " " + e.Value + ": " + e.Text
}
