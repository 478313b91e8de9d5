// Package calls has what all fakes share: a [Journal] of the calls that they get,
// in order, and a [Script] that says how calls go, other than well.
//
// A call has a name, such as "SetVolumeInfo", and subjects: the entities that it is
// about. A volume, filesystem or machine is named by its tag ("volume-0"), an
// attachment by both tags, what is attached first ("volume-0 machine-0"). Several
// fakes may share one journal, which then tells the order among them.
//
// The journal notes when a call begins and when it ends. What a call does, it has done
// when it ends: the model's record is there, the script's error has been used up. So
// tests wait for ends: [Journal.Next], [NextArgs], [Journal.AwaitCall],
// [Journal.AwaitCallAfter] and [Journal.AwaitCalls] do. The caller may not have the
// answer yet. Gates and other functions of [Script.OnCall] run after the call has begun
// and before it does anything; a call that they hold up has not ended, and
// [Gate.Entered] or [Journal.NextBegun] waits for it. [Journal.Names],
// [Journal.About], [Journal.Count], [Journal.All] and [Journal.Mark] tell of all calls
// that have begun, so that a test sees what should not have been called as soon as
// possible. A condition on what they return says nothing about effects.
package calls
