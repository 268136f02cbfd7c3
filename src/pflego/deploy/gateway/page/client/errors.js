// What somebody got wrong: one clear line that says what, and what to do.

export class ClientError extends Error {}

/** Settings or data that do not go with the kit. */
export class SettingError extends ClientError {}

/** Bytes that are damaged, foreign, or not what was agreed on. They are not used. */
export class MessageError extends ClientError {}

/** What this browser keeps is damaged, gone, or another run's. */
export class StorageError extends ClientError {}
