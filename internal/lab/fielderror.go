package lab

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
)

// FieldError is an error of one field of a Description, or of a flag for it.
type FieldError struct {
	Guest string // the guest's name
	Part  string // nics, gpus or links; "": the field is the guest's
	Index int
	Name  string
	Key   string // the field's key in a lab file; "": the error is about the NIC or GPU
	Value string
	Text  string // which values are allowed, or why this one is not
}

// fieldFlags maps "PART KEY" of a field (FieldError) to the flag that sets it.
var fieldFlags = func() map[string]string {
	flags := map[string]string{"nics model": "--nic", "nics queues": "--queues", "gpus memory": "--gpu-memory",
		" memory": "--memory", " cpus": "--cpus", " iommu": "--iommu"}
	for f := range reflect.TypeFor[NICOptions]().Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		flags["nics "+key] = "--" + key
	}
	return flags
}()

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

// InFile returns the error's text with the field's key in place of a flag; without a Key, with the NIC's or GPU's name.
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
