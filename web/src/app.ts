import { Client } from './client';
const client = new Client(() => {});
(window as any).client = client;
