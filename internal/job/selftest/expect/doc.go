// Package expect has the expected results of the kernel's driver selftests for each device, with reasons, and
// compares a run with them.
//
// There is a file for each series of kernels (suites/7.2.yaml: the cases of its tests, and vnic's patches for
// them) and one for each device model and series (models/gve-7.2.yaml: the expected results of cases). An expected
// result that is neither pass nor xfail has a class, and the kind of evidence that the class wants. A failure
// without such evidence is vnic's fault, and is not written down: it makes a run fail until vnic is mended.
// "Flaky" is no class.
//
// Results of a program without expectations in its column are not judged; but a failure or a complaint of the
// kernel there makes the run fail. Without expectations for a kernel or a device model each result and complaint is
// new.
package expect
