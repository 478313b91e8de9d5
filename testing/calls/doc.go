// Package calls has what all fakes share: a [Journal] of the calls that they get,
// in order, and a [Script] that says how calls go, other than well.
//
// A call has a name, such as "SetVolumeInfo", and subjects: the entities that it is
// about. A volume, filesystem or machine is named by its tag ("volume-0"), an
// attachment by both tags, what is attached first ("volume-0 machine-0"). Several
// fakes may share one journal, which then tells the order among them.
package calls
