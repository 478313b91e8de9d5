// Package calls has what all fakes share: a [Journal] that records, in order, the calls that
// they receive, and a [Script] that makes calls fail or block.
//
// A call has a name, such as "SetVolumeInfo", and subjects: the entities that it is about. The
// subject of a volume, filesystem or machine is its tag ("volume-0"); that of an attachment is
// both tags, the volume or filesystem first ("volume-0 machine-0"). Several fakes may share
// one journal, which then records the order among them.
//
// The journal records when a call begins and when it ends. When a call has ended, all its
// effects have happened: the model has its record, and the script's error is used up. So tests
// wait for ends, with [Journal.Next], [NextArgs], [Journal.AwaitCall],
// [Journal.AwaitCallAfter] and [Journal.AwaitCalls]. The caller may not have received the
// result yet. Gates and other functions of [Script.OnCall] run after the call has begun and
// before it does anything; a call that they block has not ended, and [Gate.Entered] or
// [Journal.NextBegun] waits for it. [Journal.Names], [Journal.About], [Journal.Count],
// [Journal.All] and [Journal.Mark] include all calls that have begun, so that a test detects
// an unwanted call as early as possible. A condition on their results says nothing about
// effects.
package calls
