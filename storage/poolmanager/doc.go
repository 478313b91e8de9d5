// Package poolmanager manages pools: providers with settings, by the names that
// users give them in directives.
//
// A [Manager] has the rules, and a [Store] that its embedder brings keeps what users
// make. The pools that come with the providers of a registry, the default ones, are
// kept nowhere: one that has the name of each provider's type, and those of
// [storage.Provider].DefaultPools. They can be used as all others and cannot be
// replaced, removed, or hidden by one of the same name. Where two providers bring the
// same name, the first in the registry's order has it.
//
// A later version of a provider may bring a default pool whose name a user has taken
// already. The user's pool goes on: it hides the default one, and can be replaced and
// removed like any other.
//
// Pools are looked up when storage is added; what is made of them later stays as it
// is. So a pool in use may get other settings. It may not get another provider, and
// is not removed: what its name tells of the storage that has it stays true.
//
// A store that changes pools and other things in one transaction takes the rules by
// themselves, as [Rules].
package poolmanager
